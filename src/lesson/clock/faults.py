"""Injected faults: which clients disconnect.

Disconnections are drawn by (seed, client, index of its local training), so they do not depend on which other clients
train and are the same in a resumed run.
"""

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import exponentials, key, uniforms
from lesson.settings.sections import FaultSettings


class Disconnections:
    """Draws which clients disconnect before or during a local training, and for how long."""

    def __init__(self, settings: FaultSettings, seed: int) -> None:
        self._settings = settings
        self.detection_delay_s = settings.detection_delay_s
        # Keys of random streams keep their original names: other names would change every draw.
        self._keys = {what: key(seed, f"dropout/{what}") for what in ("before", "during", "moment", "gone", "away")}

    def moments(self, clients: IntArray, index: IntArray) -> FloatArray:
        """Return after which fraction of download and computing each client disconnects: 0 before them, inf never."""
        before = uniforms(self._keys["before"], clients, index) < self._settings.disconnect_before
        during = uniforms(self._keys["during"], clients, index) < self._settings.disconnect_during
        moment = np.where(during, uniforms(self._keys["moment"], clients, index), np.inf)
        return np.where(before, 0.0, moment)

    def offline_s(self, clients: IntArray, index: IntArray) -> FloatArray:
        """Return how many seconds each disconnected client stays offline; inf if forever."""
        gone = uniforms(self._keys["gone"], clients, index) < self._settings.offline_forever
        return np.where(gone, np.inf, self._settings.offline_s * exponentials(self._keys["away"], clients, index))
