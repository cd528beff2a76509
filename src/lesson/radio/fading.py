"""Small-scale fading: what many paths of one signal add up to, drawn anew for every client and block of time."""

from typing import Literal

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import Key, exponentials, uniforms

FadingKind = Literal["none", "rayleigh", "rician"]

_PHASE = np.array(1)  # a third id, which keeps the phase's number apart from the power's


def fading_gain(kind: FadingKind, rician_k_db: float, key: Key, clients: IntArray, blocks: IntArray) -> FloatArray:
    """Power gain |h|² of each client in each block, of the shape the two broadcast to; its mean is 1.

    Rayleigh: h = CN(0, 1). Rician: h = √(K/(K+1)) + CN(0, 1/(K+1)), K the power of the direct path over that of the
    scattered ones.
    """
    if kind == "none":
        return np.ones(np.broadcast_shapes(np.shape(clients), np.shape(blocks)))
    power = exponentials(key, clients, blocks)
    if kind == "rayleigh":
        return power
    scattered = 1 / (1 + 10 ** (rician_k_db / 10))
    direct = np.sqrt(1 - scattered)
    power *= scattered
    amplitude = np.sqrt(power, out=power)
    # |a + b·e^jθ|² = (a − b)² + 4ab·cos²(θ/2): not below 0 however it is rounded.
    half_phase = np.cos(np.pi * uniforms(key, clients, blocks, _PHASE))
    gain: FloatArray = (direct - amplitude) ** 2 + 4 * direct * amplitude * half_phase**2
    return gain
