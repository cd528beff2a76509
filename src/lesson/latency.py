"""How long a client takes for a round and what energy it costs, Eq. (3) and (4); and what a server believes of it."""

import numpy as np

from lesson.arrays import FloatArray, IntArray


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


class Estimates:
    """What a server believes of each client's latency, by the last few times it has seen.

    The second longest of the last five, of two the longer: a client is rarely later than believed, and one that was
    slow once is not taken for a slow one.
    """

    WINDOW = 5

    def __init__(self, latency_s: FloatArray) -> None:
        self.latency_s = latency_s
        """The estimates, (num_clients,), changed in place; what is in them at first is replaced by the first look."""
        self.seen_s: FloatArray = np.full((len(latency_s), self.WINDOW), np.nan)

    def see(self, client: int, seconds: float) -> None:
        """Take in how long a client took."""
        row = self.seen_s[client]
        row[:-1], row[-1] = row[1:], seconds
        known = np.sort(row[~np.isnan(row)])
        self.latency_s[client] = known[-2] if len(known) > 2 else known[-1]
