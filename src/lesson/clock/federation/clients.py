"""Interface to remote clients, and the events they report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import FloatArray, IntArray
from lesson.strategies.base import Updates

NO_REPLY, LOST, TOO_LATE, RESTARTED = "no reply", "node lost", "too late", "server restarted"
"""Faults of the transport. Unlike faults of an update's content, they do not count towards exclusion."""


@dataclass(frozen=True)
class Reply:
    """Reply to a local training: an update, or the fault that prevented it."""

    client: int
    index: int
    """Index of the client's local training, from 0."""
    weight: float | None = None
    """Weight that the client reports for itself; None leaves its weight unchanged."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the client reports with its update."""
    fault: str = ""
    """Kind of fault, in the same few words for all faults of a kind; empty if the update can be used."""
    detail: str = ""
    """Details of the fault, for the log."""


@dataclass(frozen=True)
class Joined:
    """A client has connected. Its latency, and the compute time within it, are NaN if they were not measured."""

    client: int
    latency_s: float = math.nan
    compute_s: float = math.nan


@dataclass(frozen=True)
class Left:
    """A client has disconnected."""

    client: int


Event = Reply | Joined | Left


class Clients(Protocol):
    """Connection to the remote clients.

    Models do not pass through this interface except in checkpoints: the learner finds them by client and index.
    """

    def send(self, updates: Updates, round: int, patience_s: FloatArray) -> None:
        """Start these local trainings, each from its base version; give an update up after `patience_s` seconds."""
        ...

    def poll(self) -> Sequence[Event]:
        """Return the events since the last call without waiting; every fault is reported as a reply."""
        ...

    def give_up(self, clients: IntArray) -> None:
        """Stop waiting for the updates of these clients."""
        ...

    def forget(self, updates: Updates) -> None:
        """Discard the models of these updates."""
        ...

    def models_of(self, updates: Updates) -> Sequence[npt.NDArray[np.floating]]:
        """Return the models of these updates, which have arrived."""
        ...

    def put_back(self, updates: Updates, models: Sequence[npt.NDArray[np.floating]]) -> None:
        """Restore the models of these updates when a run is resumed."""
        ...
