"""Small-scale fading by multipath propagation, drawn independently for every client and block of time."""

from typing import Literal

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import Key, exponentials, uniforms

FadingKind = Literal["none", "rayleigh", "rician"]

_PHASE = np.array(1)  # a third id, so that the phase is drawn independently of the power


def fading_gain(kind: FadingKind, rician_k_db: float, key: Key, clients: IntArray, blocks: IntArray) -> FloatArray:
    """Return the power gain |h|², with mean 1, of the shape that clients and blocks broadcast to.

    Rayleigh: h = CN(0, 1). Rician: h = √(K/(K+1)) + CN(0, 1/(K+1)), where K is the power of the direct path relative to
    that of the scattered paths.
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
    # |a + b·e^jθ|² = (a − b)² + 4ab·cos²(θ/2), which cannot round below 0.
    half_phase = np.cos(np.pi * uniforms(key, clients, blocks, _PHASE))
    gain: FloatArray = (direct - amplitude) ** 2 + 4 * direct * amplitude * half_phase**2
    return gain
