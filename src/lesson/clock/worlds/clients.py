"""Interface to remote clients, the events they cause, and the weights and metrics that they report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lesson.clock.ledger import Ledger
from lesson.clock.records import RoundRecord
from lesson.clock.rejections import Rejection
from lesson.core.arrays import FloatArray, with_prefix
from lesson.core.state import Arrays
from lesson.strategies.base import Updates

TELL_S = 30.0
"""Interval in real seconds at which the server logs the clients it is waiting for."""
NO_REPLY, LOST, TOO_LATE, RESTARTED = "no reply", "node lost", "too late", "server restarted"
"""Transport faults. Unlike faults in the content of an update, they do not count toward exclusion."""


@dataclass(frozen=True)
class Reply:
    """A client's reply after a local training: its update, or the fault that prevented it."""

    client: int
    index: int
    """Index of the client's local training, from 0."""
    weight: float | None = None
    """Weight that the client reports for itself; None leaves its weight unchanged."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the client reports with its update."""
    fault: str = ""
    """Kind of fault, such as "no reply"; empty if the update can be used."""
    detail: str = ""
    """Details of the fault, for the log."""
    num_bytes: int = field(default=0, compare=False)
    """Size of the arrays in the reply."""
    received: float | None = field(default=None, compare=False)
    """When the reply was received, on the clock of the world; if None, when it is handled."""
    compute_s: float | None = field(default=None, compare=False)
    """Duration of the local training as the client measured it, if it reports this."""

    @property
    def key(self) -> "Key":
        """Client and index of the update."""
        return self.client, self.index

    def rejection(self, fault: str = "") -> Rejection:
        """Return a rejection of this reply because of `fault`, by default the reply's own."""
        return Rejection(self.client, self.index, fault or self.fault, self.detail)

    def is_current(self, ledger: Ledger) -> bool:
        """Return whether the reply belongs to its client's update in flight, not to an earlier one."""
        client = np.array([self.client])
        return bool(ledger.in_flight(client)[0]) and int(ledger.updates_of(client).index[0]) == self.index


@dataclass(frozen=True)
class Joined:
    """A client has connected."""

    client: int
    assumed_s: float = math.nan
    """Latency to assume if none was ever measured."""


@dataclass(frozen=True)
class Left:
    """A client has disconnected."""

    client: int


@dataclass(frozen=True)
class Returned:
    """A connected client that did something else for a while, such as evaluating a model, can train again."""

    client: int


Event = Reply | Joined | Left | Returned
Key = tuple[int, int]
"""Client and index of an update."""


class Clients(Protocol):
    """Connection to the remote clients.

    Models do not pass through this interface except in checkpoints; `learn.remote.Received` has them.
    """

    def send(self, updates: Updates, round: int, patience_s: FloatArray) -> int:
        """Ask clients to train these updates, each from its base version; give up on each after `patience_s`.

        Returns the size of the arrays that were sent, in bytes.
        """
        ...

    def poll(self) -> Sequence[Event]:
        """Return the events since the last call without waiting; every fault is reported as a reply."""
        ...

    def give_up(self, updates: Updates) -> None:
        """Stop waiting for these updates."""
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


class Reports:
    """Weights and metrics that clients report with their updates. Weights are written to `client_weight`."""

    SAVED = ("_client_weight", "_metrics")

    def __init__(self, client_weight: FloatArray) -> None:
        self._client_weight = client_weight
        self._metrics: dict[Key, Mapping[str, float]] = {}
        self._released: dict[Key, Mapping[str, float]] = {}
        """Metrics of updates released in the current round."""

    def add(self, reply: Reply) -> None:
        """Keep the weight and the metrics of a usable update."""
        if reply.weight is not None:
            self._client_weight[reply.client] = reply.weight
        self._metrics[reply.key] = dict(reply.metrics)

    def release(self, updates: Updates) -> None:
        """Keep the metrics of released updates until the next round opens."""
        self._released |= {key: self._metrics.pop(key, {}) for key in updates.keys}

    def open_round(self) -> None:
        """Discard the metrics of the last round."""
        self._released.clear()

    def of_round(self, record: RoundRecord) -> list[tuple[float, Mapping[str, float]]]:
        """Return the weight and the metrics of each update aggregated in the round that has just closed."""
        keys = zip(record.merged.tolist(), record.merged_index.tolist(), strict=True)
        return [(float(self._client_weight[client]), self._released[client, index]) for client, index in keys]


def waiting_models(clients: Clients, ledger: Ledger) -> Arrays:
    """Return the models of the updates at the server, for a checkpoint."""
    return {f"waiting.{place}": model for place, model in enumerate(clients.models_of(ledger.at_server))}


def restore_waiting_models(clients: Clients, ledger: Ledger, arrays: Arrays) -> None:
    """Pass the models that `waiting_models` returned back to `clients`."""
    models = with_prefix(arrays, "waiting.")
    clients.put_back(ledger.at_server, [models[str(place)] for place in range(len(ledger.at_server))])
