"""From path loss to upload time, Eq. (5) and (6)."""

import numpy as np

from lesson.core.arrays import FloatArray


def gain(path_loss_db: FloatArray) -> FloatArray:
    """Return the channel gain g of each client, shape (num_clients,): 10^(−path loss / 10)."""
    return np.power(10.0, -path_loss_db / 10)


def watts(power_dbm: float) -> float:
    """Convert dBm to watts; inf on overflow."""
    with np.errstate(over="ignore"):
        return float(np.power(10.0, (power_dbm - 30) / 10))


def signal_to_noise(power_w: FloatArray, gain: FloatArray, noise_w: float) -> FloatArray:
    """Return the signal-to-noise ratio p·g / N0 of each client, shape (num_clients,)."""
    with np.errstate(divide="ignore", over="ignore"):
        return power_w * gain / noise_w


def rate_bps(bandwidth_hz: float, signal_to_noise: FloatArray) -> FloatArray:
    """Return the rate of each client in bits per second, shape (num_clients,). Eq. (5): b·log2(1 + p·g / N0)."""
    return bandwidth_hz / float(np.log(2)) * np.log1p(signal_to_noise)


def upload_s(model_bits: float, rate_bps: FloatArray) -> FloatArray:
    """Return the upload time of each client in seconds, shape (num_clients,). Eq. (6): s / r; inf at rate 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return model_bits / rate_bps
