"""How long a client takes for a round and what energy it costs, Eq. (3) and (4)."""

from lesson.core.arrays import FloatArray, IntArray


def num_cycles(local_iterations: float, cycles_per_sample: FloatArray, num_samples: IntArray) -> FloatArray:
    """CPU cycles of one piece of local work of each client, (num_clients,): θ·log2(1/ε)·C·|D|."""
    return local_iterations * cycles_per_sample * num_samples


def compute_s(num_cycles: FloatArray, cpu_hz: FloatArray) -> FloatArray:
    """Seconds each client trains, (num_clients,). Eq. (4): θ·log2(1/ε)·C·|D| / f."""
    return num_cycles / cpu_hz


def latency_s(compute_s: FloatArray, upload_s: FloatArray) -> FloatArray:
    """Seconds from a client's start to its model's arrival, (num_clients,). Eq. (3): compute + upload."""
    return compute_s + upload_s


def compute_j(kappa: float, num_cycles: FloatArray, cpu_hz: FloatArray) -> FloatArray:
    """Joules each client spends on training, (num_clients,): κ·f²·cycles."""
    return kappa * cpu_hz**2 * num_cycles


def transmit_j(power_w: FloatArray, upload_s: FloatArray) -> FloatArray:
    """Joules each client spends on its upload, (num_clients,): power × upload time."""
    return power_w * upload_s
