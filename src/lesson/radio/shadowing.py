"""Log-normal shadowing by obstacles, correlated between nearby positions.

The correlation decays as exp(−distance / correlation distance) (Gudmundson 1991, Electronics Letters 27). The field
over the plane is a sum of plane waves (Cai and Giannakis 2003, IEEE Trans. Veh. Technol. 52), so it can be evaluated at
any position, without a grid, and always has the same value there.
"""

import math

import numpy as np

from lesson.core.arrays import FloatArray
from lesson.core.random import key, uniforms

NUM_WAVES = 300
_CHUNK = 256  # positions per chunk; their waves fit into a core's cache


class GaussianField:
    """A Gaussian random field over the plane, called with positions: mean 0, variance 1, exponential correlation.

    These moments hold over all seeds; a single field of 300 waves comes close to them.
    """

    def __init__(self, seed: int, what: str, correlation_km: float) -> None:
        size, direction, phase = uniforms(key(seed, what), np.arange(NUM_WAVES), np.arange(3)[:, None])
        # The correlation exp(−r/d) has the spectral density d²/(2π·(1 + d²k²)^1.5) over the plane, so the wave number k
        # has the distribution function 1 − 1/√(1 + d²k²). It is inverted with a uniform number for 1/√(1 + d²k²).
        turns_per_km = np.sqrt(1 / size**2 - 1) / correlation_km / (2 * np.pi)
        self._turns_per_km_x = turns_per_km * np.cos(2 * np.pi * direction)
        self._turns_per_km_y = turns_per_km * np.sin(2 * np.pi * direction)
        self._phase_turns = phase

    def __call__(self, x_km: FloatArray, y_km: FloatArray) -> FloatArray:
        """Return the field √(2/M)·Σ cos(k·r + φ) of M waves at each position, with the shape of the positions."""
        x_km, y_km = np.broadcast_arrays(x_km, y_km)
        shape, x_km, y_km = x_km.shape, x_km.reshape(-1, 1), y_km.reshape(-1, 1)
        value = np.empty(len(x_km))
        for start in range(0, len(value), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            # Not a matrix product, whose last bits depend on the number of positions per call.
            turns = x_km[chunk] * self._turns_per_km_x
            turns += y_km[chunk] * self._turns_per_km_y
            turns += self._phase_turns
            turns -= np.rint(turns)
            # At most half a turn is left: single precision keeps the sum to a few millionths and is six times as fast.
            angle = np.multiply(turns, 2 * np.pi, dtype=np.float32, casting="same_kind")
            value[chunk] = np.cos(angle, out=angle).sum(axis=1)
        return math.sqrt(2 / NUM_WAVES) * value.reshape(shape)
