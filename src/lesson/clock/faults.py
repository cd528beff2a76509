"""Injected faults: which clients disconnect, and which uploads and labels are corrupted.

Disconnections and corrupted uploads are drawn by (seed, client, index of its local training), so they do not depend on
which other clients train and are the same in a resumed run.
"""

import numpy as np

from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.random import exponentials, key, uniforms
from lesson.settings.faults import FaultSettings


class Disconnections:
    """Draws which clients disconnect before or during a local training, and for how long."""

    def __init__(self, settings: FaultSettings, seed: int) -> None:
        self._settings = settings
        self.detection_delay_s = settings.detection_delay_s
        # Keys of random streams keep their names from version 0.1: other names would change every draw.
        self._keys = {what: key(seed, f"dropout/{what}") for what in ("before", "during", "moment", "gone", "away")}

    @classmethod
    def of(cls, settings: FaultSettings, seed: int) -> "Disconnections | None":
        """Return the disconnections of these settings; None if there are none."""
        return cls(settings, seed) if settings.disconnects else None

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


def corrupting_clients(settings: FaultSettings, num_clients: int, seed: int) -> BoolArray:
    """Return which clients may have corrupted uploads or labels, shape (num_clients,)."""
    drawn = uniforms(key(seed, "wrong client"), np.arange(num_clients))
    is_corrupting = np.zeros(num_clients, dtype=np.bool_)
    is_corrupting[np.argsort(drawn, kind="stable")[: settings.num_corrupting(num_clients)]] = True
    return is_corrupting


def has_flipped_label(settings: FaultSettings, samples: IntArray, seed: int) -> BoolArray:
    """Return which samples of a corrupting client have a flipped label."""
    return uniforms(key(seed, "flipped labels"), samples) < settings.flipped_labels


class CorruptedUploads:
    """Draws which uploads are corrupted, and how; an upload can have several faults."""

    def __init__(self, settings: FaultSettings, num_clients: int, seed: int) -> None:
        self._settings, self._seed = settings, seed
        self.is_corrupting = corrupting_clients(settings, num_clients, seed)
        self.may_be_infinite = any(getattr(settings, name) > 0 for name in ("nan", "infinity", "scaled"))
        """Whether uploads may have values that are not finite."""

    @classmethod
    def of(cls, settings: FaultSettings, num_clients: int, seed: int) -> "CorruptedUploads | None":
        """Return the corruptions of these settings; None if there are none."""
        return cls(settings, num_clients, seed) if settings.corrupts else None

    def has(self, fault: str, clients: IntArray, index: IntArray) -> BoolArray:
        """Return which of these uploads have a fault, given by the name of its setting."""
        drawn = uniforms(key(self._seed, f"wrong/{fault}"), clients, index)
        happens: BoolArray = drawn < getattr(self._settings, fault)
        return self.is_corrupting[clients] & happens

    def factor(self, clients: IntArray, index: IntArray) -> FloatArray:
        """Return the factor of each upload's update: `scale` if it is scaled, negative if flipped, otherwise 1."""
        scaled = np.where(self.has("scaled", clients, index), self._settings.scale, 1.0)
        return np.where(self.has("flipped", clients, index), -scaled, scaled)

    def added_value(self, clients: IntArray, index: IntArray) -> FloatArray:
        """Return the value that is added to one parameter of each upload: 0, infinity or NaN."""
        infinite = np.where(self.has("infinity", clients, index), np.inf, 0.0)
        return np.where(self.has("nan", clients, index), np.nan, infinite)

    def is_intact(self, client: int, index: int) -> bool:
        """Return whether an upload is not corrupted."""
        who, which = np.array([client]), np.array([index])
        return bool(self.factor(who, which)[0] == 1 and self.added_value(who, which)[0] == 0)

    def place(self, clients: IntArray, index: IntArray, size: int) -> IntArray:
        """Return the index of the corrupted parameter of each upload, in [0, size)."""
        return (uniforms(key(self._seed, "wrong/place"), clients, index) * size).astype(np.int64)
