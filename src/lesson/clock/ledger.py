"""Ledger: what each client is doing, which updates wait at the server, and which model versions are in use.

A client is idle, busy (training) or disconnected. An update is in flight from its start until it is collected, waits at
the server until it is aggregated, and is then released. An update that is dropped, lost or rejected is released early.
A version is in use while it is the newest or an update that started from it has not been released. Only the methods of
`Ledger` change this state; their cost depends on the clients involved, not on the size of the fleet.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.clock.arrivals import ArrivalQueue
from lesson.clock.rejections import OF_CONTENT, Rejection
from lesson.core.arrays import BoolArray, FloatArray, IntArray, counted, distinct
from lesson.fleet.allocation import Resources
from lesson.strategies.base import COLUMNS, NO_UPDATES, Updates

_NONE = -1


class Ledger:
    """State of all clients and updates. Arrays have shape (num_clients,) and must not be changed from outside."""

    SAVED = (
        *("connected", "idle", "busy", "excluded", "num_connected", "num_busy", "num_in_flight", "some_are_gone"),
        *("waiting", "at_server", "version", "version_is_new", "_next_id", "_latest", "_to_consider", "_num_updates"),
        *("_unused", "_newest", "_in_a_row", "resources", "exhausted"),
    )

    def __init__(self, connected: BoolArray, exclude_after: int = 0) -> None:
        num_clients = len(connected)
        self.connected: BoolArray = connected.copy()
        self.idle: BoolArray = connected.copy()
        """Connected and not training."""
        self.busy: BoolArray = np.zeros(num_clients, dtype=np.bool_)
        """Connected and training."""
        self.excluded: BoolArray = np.zeros(num_clients, dtype=np.bool_)
        """Excluded from the run, because of too many rejected updates."""
        self.exhausted: BoolArray = np.zeros(num_clients, dtype=np.bool_)
        """Disconnected for good, because the energy budget does not suffice for another update."""
        self.num_connected, self.num_busy = int(np.count_nonzero(connected)), 0
        self.some_are_gone = False
        """Whether a client was excluded or has disconnected for good."""
        self.waiting: IntArray = np.zeros(num_clients, dtype=np.int64)
        """Number of updates of each client at the server."""
        self.at_server = NO_UPDATES
        """Updates at the server, in order of arrival."""
        self.version = 0
        """Newest model version."""
        self.version_is_new = False
        """Whether the newest version was created since the last round opened."""
        self.exclude_after = exclude_after
        """Number of consecutive rejections after which a client is excluded; 0 for never."""
        self.num_in_flight = 0
        self._next_id = 0
        first = {"id": _NONE, "index": -1, "started_s": np.nan, "expected_s": np.nan, "arrived_s": -np.inf}
        self._latest: dict[str, npt.NDArray[Any]] = {
            name: np.full(num_clients, first.get(name, 0), getattr(NO_UPDATES, name).dtype)
            for name in COLUMNS
            if name != "client"
        }
        """Columns of each client's latest update. If it is not in flight, its id is _NONE and its arrival time −inf."""
        self.started_round: IntArray = self._latest["started_round"]
        self.started_s: FloatArray = self._latest["started_s"]
        self.tier: IntArray = self._latest["tier"]
        """Tier in which each client last started; 0 before its first start."""
        self.resources: Resources | None = None
        """Resources of each client's latest update, shape (num_clients,); None as long as all had the usual ones."""
        self._id: IntArray = self._latest["id"]
        self._arrives_s: FloatArray = self._latest["arrived_s"]
        self._queue = ArrivalQueue(self._id)
        self._to_consider: list[IntArray] = [np.flatnonzero(connected)]
        self._num_updates: dict[int, int] = {0: 0}
        """Number of updates that started from each version in use and have not been released."""
        self._unused: list[int] = []
        self._newest: IntArray = np.full(num_clients, -1)
        """Index of the newest update received from each client; −1 before the first."""
        self._in_a_row: IntArray = np.zeros(num_clients, dtype=np.int64)
        """Number of rejected updates of each client since its last accepted one."""

    def __len__(self) -> int:
        return len(self.connected)

    # Queries

    @property
    def is_deserted(self) -> bool:
        """Whether no client is connected, no update is in flight and none is at the server."""
        return not (self.num_connected or self.num_in_flight or len(self.at_server))

    @property
    def versions(self) -> list[int]:
        """Model versions in use, sorted."""
        return sorted(self._num_updates)

    def in_flight(self, clients: IntArray) -> BoolArray:
        """Return which of these clients have an update in flight, connected or not, shape (len(clients),)."""
        return np.not_equal(self._id[clients], _NONE)

    def clients_in_flight(self) -> IntArray:
        """Return the clients that have an update in flight, sorted."""
        return np.flatnonzero(self._id != _NONE)

    def updates_of(self, clients: IntArray) -> Updates:
        """Return the updates in flight of these clients, all of which must have one."""
        ids, *others = [column[clients] for column in self._latest.values()]
        return Updates(ids, clients, *others)

    def last_arrival_s(self, clients: IntArray) -> float:
        """Return when the last update in flight of these clients arrives; −inf if none of them has one."""
        return float(self._arrives_s[clients].max(initial=-np.inf))

    def final_arrival_s(self) -> float:
        """Return when the last update in flight arrives; −inf if there is none."""
        return float(self._arrives_s.max())

    def nth_arrival_s(self, count: int) -> float:
        """Return when the next `count` updates have arrived; −inf if `count` <= 0, inf if fewer are in flight."""
        if count <= 0:
            return -np.inf
        if count > self.num_in_flight:
            return np.inf
        if count == 1:
            return self._queue.next_s()
        return float(np.partition(self._arrives_s[self._id != _NONE], count - 1)[count - 1])

    def was_received(self, client: int, index: int) -> bool:
        """Return whether this update of a client, or a newer one, has been received before."""
        return bool(index <= self._newest[client])

    def last_received(self, client: int) -> int:
        """Return the index of the newest update of a client that has been received; −1 if there is none."""
        return int(self._newest[client])

    # Updates

    def new_updates(self, clients: IntArray, round: int, now_s: float, **columns: Any) -> Updates:
        """Record and return new updates of these idle clients from the newest version; `start` puts them in flight.

        Their arrival times are inf until then. `columns` are `expected_s`, `lr_scale`, `local_steps`, `samples`,
        `level`, `tier`, `compute_scale`, `upload_scale` and `in_turn`, each an array with one entry per client, or one
        value for all.
        """
        columns |= {"base_version": self.version, "started_round": round, "started_s": now_s}
        columns["index"] = self._latest["index"][clients] + 1
        for name, value in columns.items():
            self._latest[name][clients] = value
        updates = self.updates_of(clients)
        updates.id[:], updates.arrived_s[:] = np.arange(self._next_id, self._next_id + len(clients)), np.inf
        return updates

    def allocate(self, clients: IntArray, given: Resources) -> Resources:
        """Record the resources of updates that start now; return those of all clients."""
        if self.resources is None:
            self.resources = Resources(*np.ones((3, len(self))))
        for values, new in zip(self.resources, given, strict=True):
            values[clients] = new
        return self.resources

    def start(self, updates: Updates, arrives_s: FloatArray) -> None:
        """Start the updates that the last call of `new_updates` returned. An arrival time of inf is not known yet."""
        clients = updates.client
        self._id[clients], self._arrives_s[clients] = updates.id, arrives_s
        self._next_id += len(clients)
        self.num_in_flight += len(clients)
        self.num_busy += len(clients)
        self.idle[clients], self.busy[clients] = False, True
        self._num_updates[self.version] += len(clients)
        self._queue.add(arrives_s, clients, updates.id)

    def arrive(self, client: int, now_s: float) -> None:
        """Record that a client's update has been received now; its arrival time was not known before."""
        self._arrives_s[client] = now_s
        self._newest[client] = self._latest["index"][client]
        self._queue.add(np.array([now_s]), np.array([client]), self._id[[client]])

    def reschedule(self, clients: IntArray, arrives_s: FloatArray) -> None:
        """Replace the arrival times of all updates in flight; `clients` must be all clients that have one."""
        self._arrives_s[clients] = arrives_s
        self._queue = ArrivalQueue(self._id)
        order = np.argsort(self._id[clients], kind="stable")
        self._queue.add(arrives_s[order], clients[order], self._id[clients[order]])

    def collect(self, now_s: float) -> Updates:
        """Return the updates that have arrived, in order of arrival, then of start; they are no longer in flight.

        Each must then be passed to `land` or `discard`.
        """
        clients = self._queue.pop(now_s)
        return self._take(clients[self._arrives_s[clients].argsort(kind="stable")])

    def land(self, updates: Updates) -> None:
        """Add collected updates to those that wait at the server."""
        clients = updates.client
        self._newest[clients] = updates.index
        np.add.at(self.waiting, clients, 1)  # += would take twice as long for a few clients
        self._to_consider.append(clients)
        self.at_server = Updates.join(self.at_server, updates)

    def discard(self, updates: Updates) -> None:
        """Release collected updates that were lost or rejected."""
        self._to_consider.append(updates.client)
        self._release_versions(updates)

    def drop(self, clients: IntArray) -> Updates:
        """Cancel the updates in flight of these clients, release them and return them."""
        updates = self._take(clients)
        self.discard(updates)
        return updates

    def release(self, rows: BoolArray) -> Updates:
        """Release and return the updates in these rows of `at_server`, which were aggregated or dropped."""
        updates = self.at_server[rows]
        if not len(updates):
            return updates
        self.at_server = self.at_server[~rows]
        np.subtract.at(self.waiting, updates.client, 1)
        self._to_consider.append(updates.client)
        self._release_versions(updates)
        return updates

    # Versions

    def add_version(self) -> None:
        """Record that the server has created a new version."""
        before, self.version, self.version_is_new = self.version, self.version + 1, True
        self._num_updates[self.version] = 0
        self._release_version(before)

    def take_unused(self) -> list[int]:
        """Return the versions that are no longer in use, each of them once."""
        unused, self._unused = self._unused, []
        return unused

    # Clients

    def connect(self, clients: IntArray) -> None:
        """Connect clients; they become busy if their update is in flight, otherwise idle.

        Excluded and exhausted clients stay disconnected.
        """
        self._to_consider.append(clients)
        clients = clients[~(self.connected[clients] | self.excluded[clients] | self.exhausted[clients])]
        training = self.in_flight(clients)
        self.connected[clients], self.idle[clients], self.busy[clients] = True, ~training, training
        self.num_connected += len(clients)
        self.num_busy += int(np.count_nonzero(training))

    def disconnect(self, clients: IntArray, for_good: BoolArray | bool = False) -> None:
        """Disconnect clients; their updates stay in flight. `for_good` says which will never connect again."""
        self.num_connected -= int(np.count_nonzero(self.connected[clients]))
        self.num_busy -= int(np.count_nonzero(self.busy[clients]))
        self.connected[clients] = self.idle[clients] = self.busy[clients] = False
        self.some_are_gone |= bool(np.any(for_good))

    def reconsider(self, clients: IntArray) -> None:
        """Add clients to those that the strategy should reconsider when the next round opens."""
        self._to_consider.append(clients)

    def to_consider(self) -> IntArray:
        """Return the clients to consider, sorted; see `ServerView.to_consider`."""
        return distinct(self._to_consider)

    def open_round(self) -> None:
        """Clear what has happened since the last round opened: clients to reconsider, and a new version."""
        self._to_consider.clear()
        self.version_is_new = False

    def accept(self, clients: IntArray) -> None:
        """Reset the number of consecutive rejections of clients whose updates were aggregated."""
        self._in_a_row[clients] = 0

    def count_rejections(self, rejections: Sequence[Rejection]) -> dict[int, str]:
        """Count rejected updates; return the clients to exclude, each with the reason for its last rejection."""
        to_exclude: dict[int, str] = {}
        for rejection in rejections:
            client = rejection.client
            if rejection.reason in OF_CONTENT and not self.excluded[client] and client not in to_exclude:
                self._in_a_row[client] += 1
                if self.exclude_after and self._in_a_row[client] >= self.exclude_after:
                    to_exclude[client] = rejection.reason
        return to_exclude

    def exclude(self, clients: IntArray) -> tuple[Updates, Updates]:
        """Exclude clients; drop their updates in flight, release those at the server, and return both."""
        dropped = self.drop(clients[self.in_flight(clients)])
        released = self.release(np.isin(self.at_server.client, clients))
        self.disconnect(clients, for_good=True)
        self.excluded[clients] = True
        return dropped, released

    def exhaust(self, clients: IntArray) -> None:
        """Disconnect clients for good, because their energy budgets do not suffice for another update."""
        self.disconnect(clients, for_good=True)
        self.exhausted[clients] = True

    def readmit(self, clients: IntArray) -> None:
        """Let excluded clients take part again; `connect` them if they are connected."""
        self.excluded[clients] = False
        self._in_a_row[clients] = 0

    def rebuild_queue(self) -> None:
        """Rebuild the queue of arrivals, which is not part of a checkpoint, after everything else was restored."""
        clients = self.clients_in_flight()
        self.reschedule(clients, self._arrives_s[clients])

    def _take(self, clients: IntArray) -> Updates:
        """Return the updates in flight of these clients, which no longer are; connected clients become idle."""
        updates = self.updates_of(clients)
        self._id[clients] = _NONE
        self._arrives_s[clients] = -np.inf
        self.num_in_flight -= len(clients)
        self.num_busy -= int(np.count_nonzero(self.busy[clients]))
        self.idle[clients], self.busy[clients] = self.connected[clients], False
        return updates

    def _release_versions(self, updates: Updates) -> None:
        for version, count in counted(updates.base_version):
            self._num_updates[version] -= count
            self._release_version(version)

    def _release_version(self, version: int) -> None:
        if version != self.version and not self._num_updates[version]:
            del self._num_updates[version]
            self._unused.append(version)
