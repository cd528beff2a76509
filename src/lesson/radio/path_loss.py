"""Log-distance path loss, the paper's model: 128.1 + 37.6·log10(d), d in km (3GPP TR 36.814, macro cell)."""

import numpy as np

from lesson.core.arrays import FloatArray


def log_distance_path_loss_db(distance_km: FloatArray, at_1km_db: float, slope_db: float) -> FloatArray:
    """Return the path loss of each client in dB, shape (num_clients,).

    The paper prints 128.1 + 37.6·d; without the logarithm, latencies would be hours.
    """
    return at_1km_db + slope_db * np.log10(distance_km)
