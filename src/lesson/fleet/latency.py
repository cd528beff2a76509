"""Latency and energy of one local training and upload, Eq. (3) and (4)."""

from lesson.core.arrays import FloatArray, IntArray


def num_cycles(num_passes: float, cycles_per_sample: FloatArray, num_samples: IntArray) -> FloatArray:
    """Return the CPU cycles of one local training of each client, shape (num_clients,): θ·log2(1/ε)·C·|D|.

    θ·log2(1/ε) is `num_passes`.
    """
    return num_passes * cycles_per_sample * num_samples


def compute_s(num_cycles: FloatArray, cpu_hz: FloatArray) -> FloatArray:
    """Return the compute time of each client in seconds, shape (num_clients,). Eq. (4): θ·log2(1/ε)·C·|D| / f."""
    return num_cycles / cpu_hz


def latency_s(compute_s: FloatArray, upload_s: FloatArray) -> FloatArray:
    """Return the time from start to arrival of each client's update in seconds, shape (num_clients,).

    Eq. (3): compute + upload.
    """
    return compute_s + upload_s


def compute_j(kappa: float, num_cycles: FloatArray, cpu_hz: FloatArray) -> FloatArray:
    """Return the compute energy of each client in joules, shape (num_clients,): κ·f²·cycles."""
    return kappa * cpu_hz**2 * num_cycles


def transmit_j(power_w: FloatArray, upload_s: FloatArray) -> FloatArray:
    """Return the transmit energy of each client in joules, shape (num_clients,): power × upload time."""
    return power_w * upload_s
