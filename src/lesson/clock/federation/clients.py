"""Clients that are elsewhere, and what can come of their work."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import FloatArray, IntArray
from lesson.strategies.base import Updates

NO_REPLY, LOST, TOO_LATE, RESTARTED = "no reply", "node lost", "too late", "server restarted"
"""Kinds of faults that are told apart."""


@dataclass(frozen=True)
class Reply:
    """What has come of a client's work."""

    client: int
    index: int
    """Which piece of its client's work."""
    weight: float | None = None
    """What the client says it counts for."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""
    """Why it cannot be used, in two words: the same for faults of one kind."""
    detail: str = ""


@dataclass(frozen=True)
class Joined:
    """A client is there that was not; its latency, and the part of it for computing, are NaN where not measured."""

    client: int
    latency_s: float = math.nan
    compute_s: float = math.nan


@dataclass(frozen=True)
class Left:
    """A client is gone."""

    client: int


Event = Reply | Joined | Left


class Clients(Protocol):
    """Where the clients are. Models travel beside: whoever merges them finds them by client and index."""

    def send(self, updates: Updates, round: int, patience_s: FloatArray) -> None:
        """Have clients work on these updates, each from its base version; after `patience_s` nobody waits any more."""
        ...

    def poll(self) -> Sequence[Event]:
        """What has happened since the last call, every fault as a reply; does not wait."""
        ...

    def give_up(self, clients: IntArray) -> None:
        """Nobody waits for the work of these clients any more."""
        ...

    def forget(self, updates: Updates) -> None:
        """The models of these updates are not needed any more."""
        ...

    def models_of(self, updates: Updates) -> Sequence[npt.NDArray[np.floating]]:
        """The models of these updates, which have arrived."""
        ...

    def put_back(self, updates: Updates, models: Sequence[npt.NDArray[np.floating]]) -> None:
        """Have these models again, after a restart."""
        ...
