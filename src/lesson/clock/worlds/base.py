"""The protocol of worlds, which provide time, arrivals and latency estimates to the round loop."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lesson.clock.ledger import Ledger
from lesson.clock.rejections import Rejection
from lesson.core.arrays import BoolArray, FloatArray
from lesson.core.state import Arrays
from lesson.fleet.fleet import Fleet
from lesson.fleet.tiers import TOLERANCE
from lesson.strategies.base import NO_UPDATES, AllOf, AnyOf, Arrivals, Closing, Updates


@dataclass(eq=False, slots=True)
class Collected:
    """Outcome of the updates that are collected at the end of a round."""

    arrived: Updates
    """Updates that have arrived and can be used."""
    lost: Updates = NO_UPDATES
    """Updates that never arrived, because their clients left or disconnected."""
    unfit: Updates = NO_UPDATES
    """Updates that arrived and were rejected because of their content."""
    rejections: tuple[Rejection, ...] = ()
    """All rejections since the last round closed: unfit updates, duplicates, and updates that were late or missing."""
    num_bytes: tuple[int, int] | None = None
    """Bytes that clients uploaded and downloaded since the last round closed, if they were counted. Otherwise, each
    transfer has the size of the fleet's model."""


class World(Protocol):
    """Provides time, arrivals and latency estimates to the round loop.

    A world may change the ledger as follows: it connects, disconnects and reconsiders clients, sets arrival times, and
    drops updates that can no longer arrive. All other changes of the ledger are the round loop's.
    """

    fleet: Fleet
    """The fleet as the server knows it: the times and weights that strategies see. A world that changes them writes
    into the arrays of its own copy, which the loop and the strategies keep using."""
    first_latency_s: FloatArray
    """Latencies estimated before anything was measured, shape (num_clients,)."""
    connected: BoolArray
    """Clients that are connected when the run begins, shape (num_clients,)."""
    varies: bool
    """Whether simulated times may differ from the estimates; records then count misses, re-tiering and lost updates."""

    def open(self, ledger: Ledger, round: int, now_s: float, until_s: float) -> float:
        """Return when the next round opens, at `now_s` or later; inf if no client will ever take part again.

        If the round has to wait for a client to join, it opens when the client joins; after `until_s`, the run ends.
        """
        ...

    def start(self, updates: Updates, ledger: Ledger, now_s: float) -> FloatArray:
        """Start these updates; return when they arrive, shape (num_updates,), inf where that is not known yet."""
        ...

    def cancel(self, updates: Updates) -> None:
        """Cancel updates in flight that the strategy has dropped or whose clients were excluded."""
        ...

    def wait(self, closes: Closing, ledger: Ledger, now_s: float, until_s: float) -> tuple[float, str]:
        """Return when the round closes, inf if never, and a note; in real time, wait until it has closed."""
        ...

    def collect(self, due: Updates, ledger: Ledger, now_s: float) -> Collected:
        """Return which of the updates that are due can be used, and which were lost or rejected.

        The loop discards all of them that have not arrived. Latency estimates are updated with the measured times.
        """
        ...

    def release(self, updates: Updates) -> None:
        """Free the models of these updates, which the server no longer needs."""
        ...

    def next_change_s(self, now_s: float) -> float:
        """Return when a client next joins or leaves if no update is in flight; inf if never."""
        ...

    def energy_j(self, updates: Updates, elapsed_s: FloatArray | None = None) -> FloatArray:
        """Return the compute and transmit energy of updates at the usual powers, shape (2, num_updates).

        `elapsed_s` is the time from the start to the end of each update that did not arrive; None if all arrived.
        """
        ...

    def state(self, ledger: Ledger) -> tuple[dict[str, Any], Arrays]:
        """Return the state for `restore`: values that JSON can represent, and arrays, which the caller copies."""
        ...

    def restore(self, values: dict[str, Any], arrays: Arrays, ledger: Ledger, now_s: float) -> None:
        """Continue from what `state` returned; the ledger has already been restored."""
        ...


def closing_time(closes: Closing, ledger: Ledger, now_s: float) -> tuple[float, str]:
    """Return when a round closes, given the arrivals known so far, and a note if no update in flight can close it.

    In that case, the round closes with the last arrival, or now if no update is in flight.
    """
    match closes:
        case Arrivals(count=count):
            close_s = ledger.nth_arrival_s(count)
        case AllOf(clients=clients):
            close_s = ledger.last_arrival_s(clients)
        case AnyOf(groups=groups):
            ends_s = [ledger.last_arrival_s(group) for group in groups]
            close_s = min((end_s for end_s in ends_s if end_s > -np.inf), default=np.inf)
        case _:
            close_s = np.inf
    if close_s > closes.by_s * (1 + TOLERANCE):
        close_s = closes.by_s
    if close_s < np.inf:
        return max(now_s, close_s), ""
    return max(now_s, ledger.final_arrival_s()), "no update in flight could close the round"


def nominal_energy_j(fleet: Fleet, updates: Updates, elapsed_s: FloatArray | None = None) -> FloatArray:
    """Return the energy of updates that take as long as expected, as `World.energy_j` does.

    It is NaN if the energy of a client is unknown.
    """
    clients, in_turn, computed = updates.client, updates.in_turn, updates.compute_scale
    usual_j = fleet.transmit_j[clients]
    if np.count_nonzero(in_turn):
        usual_j = np.where(in_turn, fleet.shared_transmit_j[clients], usual_j)
    transmit_j = updates.upload_scale * usual_j
    if elapsed_s is not None:
        compute_s = computed * fleet.compute_s[clients]
        upload_s = updates.upload_scale * np.where(in_turn, fleet.shared_upload_s[clients], fleet.upload_s[clients])
        computed = ((elapsed_s - fleet.download_s[clients]) / compute_s).clip(0, 1) * computed
        transmit_j = ((elapsed_s - (updates.expected_s - upload_s)) / upload_s).clip(0, 1) * transmit_j
    return np.array([computed * fleet.compute_j[clients], transmit_j])
