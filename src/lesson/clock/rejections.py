"""Rejected updates: the reasons, and which clients are excluded after too many of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import BoolArray, IntArray

WRONG_ARRAYS, WRONG_SHAPE, WRONG_TYPE = "wrong arrays", "wrong shape", "wrong type"
WRONG_METRICS, UNREADABLE = "wrong metrics", "unreadable"
NOT_FINITE, TOO_FAR, NO_WEIGHT, ALREADY_SEEN = "not finite", "norm too large", "no weight", "already received"
OF_CONTENT = frozenset(
    {WRONG_ARRAYS, WRONG_SHAPE, WRONG_TYPE, WRONG_METRICS, UNREADABLE, NOT_FINITE, TOO_FAR, NO_WEIGHT}
)
"""Reasons that count towards exclusion; transport faults do not."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejected update."""

    client: int
    index: int
    """Index of the client's local training, from 0."""
    reason: str
    """One of the reasons above, or a fault of the transport."""


@dataclass(eq=False)
class RejectionLedger:
    """The newest update received from each client, its number of consecutive rejections, and whether it is excluded."""

    num_clients: int
    exclude_after: int

    def __post_init__(self) -> None:
        self.newest: IntArray = np.full(self.num_clients, -1)
        """Index of the newest update received from each client; −1 before the first."""
        self.in_a_row: IntArray = np.zeros(self.num_clients, dtype=np.int64)
        """Number of rejected updates of each client since its last accepted one."""
        self.excluded: BoolArray = np.zeros(self.num_clients, dtype=np.bool_)
        """Which clients no longer take part."""

    def already_seen(self, client: int, index: int) -> bool:
        """Return whether this update of a client, or a newer one, has been received before."""
        return bool(index <= self.newest[client])

    def receive(self, clients: IntArray | int, index: IntArray | int) -> None:
        """Note updates that have arrived, at most one per client."""
        self.newest[clients] = np.maximum(self.newest[clients], index)

    def accept(self, clients: IntArray) -> None:
        """Note the clients whose updates were aggregated."""
        self.in_a_row[clients] = 0

    def reject(self, rejections: Sequence[Rejection]) -> dict[int, str]:
        """Note rejected updates; return the clients that are now excluded, with their last reason."""
        against = {}
        for rejection in rejections:
            client = rejection.client
            if rejection.reason in OF_CONTENT and not self.excluded[client]:
                self.in_a_row[client] += 1
                if self.exclude_after and self.in_a_row[client] >= self.exclude_after:
                    self.excluded[client] = True
                    against[client] = rejection.reason
        return against

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays, for `restore`."""
        return {"newest": self.newest, "in_a_row": self.in_a_row, "excluded": self.excluded}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from what `state` returned."""
        for name, array in self.state().items():
            array[:] = state[name]
