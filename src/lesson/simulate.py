"""The round loop on a virtual clock. Without a learner it is a timing-only dry run.

The work of a round follows the clients that start, arrive or are merged in it, never the number of clients.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lesson.arrays import NO_CLIENTS, FloatArray, IntArray
from lesson.errors import InputError
from lesson.fleet import Fleet
from lesson.flight import InFlight
from lesson.strategies.base import AllOf, AnyOf, Arrivals, Closing, Merge, RoundPlan, ServerView, Strategy, Updates
from lesson.streams import stream
from lesson.tiers import TOLERANCE

Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """What happened in one round. Clients are numbers; energy is None where the fleet does not know it."""

    round: int
    start_s: float
    end_s: float
    version: int
    """Of the model after the round."""
    started: IntArray
    merged: IntArray
    staleness: IntArray
    """Versions that were made since each merged update's base, in the order of `merged`."""
    uploads: int
    """Updates that arrived in this round."""
    bytes_up: int
    bytes_down: int
    compute_j: float | None
    transmit_j: float | None
    """Energy of the work that arrived or was broken off in this round."""
    note: str


class Simulation:
    """A strategy, a fleet and the clock between them; `step` runs one round."""

    def __init__(self, strategy: Strategy, fleet: Fleet, *, model_bits: float = 100e3, seed: int = 0) -> None:
        self.strategy, self.fleet, self.seed = strategy, fleet, seed
        self.model_bytes = int(np.ceil(model_bits / 8))
        self.round = self.version = 0
        self.now_s = 0.0
        self.over = ""
        """Why nothing more can happen, once that is so."""
        self._flight = InFlight(len(fleet))
        self._at_server = self._flight.land(0.0)
        self._idle = fleet.reachable
        self._num_connected = int(np.count_nonzero(self._idle))
        self._waiting: IntArray = np.zeros(len(fleet), dtype=np.int64)
        self._freed: list[IntArray] = [np.flatnonzero(self._idle)]
        self._work: FloatArray = np.ones(len(fleet))
        self._channel_free_s = 0.0

    def step(self) -> RoundRecord:
        """Run the next round and say what happened in it."""
        self.round += 1
        start_s = self.now_s
        plan = self.strategy.open_round(self._view(_distinct(self._freed)), stream(self.seed, "strategy", self.round))
        self._freed.clear()
        spent_j = self._drop(plan.drops)
        self._start(plan)
        self.now_s, note = self._closing_s(plan.closes)
        landed = self._land()
        merged = self._merge(self.strategy.merge(self._view(NO_CLIENTS), self._at_server))
        if not (len(plan.starts) or len(merged) or len(self._flight) or self.now_s > start_s):
            self.over = note = "nobody is training and nobody can start"
        if self.round == 1:
            note = "; ".join(filter(None, [note, first_tier_note(self.fleet)]))
        spent_j += self._spent_j(landed, np.inf)
        return RoundRecord(
            round=self.round,
            start_s=start_s,
            end_s=self.now_s,
            version=self.version,
            started=plan.starts,
            merged=merged.client,
            staleness=self.version - 1 - merged.base_version,
            uploads=len(landed),
            bytes_up=len(landed) * self.model_bytes,
            bytes_down=len(plan.starts) * self.model_bytes,
            compute_j=_known(spent_j[0]),
            transmit_j=_known(spent_j[1]),
            note=note,
        )

    def _view(self, freed: IntArray) -> ServerView:
        fleet = self.fleet
        return ServerView(
            round=self.round,
            version=self.version,
            now_s=self.now_s,
            num_connected=self._num_connected,
            compute_s=_read_only(fleet.compute_s),
            upload_s=_read_only(fleet.upload_s),
            latency_s=_read_only(fleet.latency_s),
            num_samples=_read_only(fleet.num_samples),
            client_weight=_read_only(fleet.client_weight),
            idle=_read_only(self._idle),
            waiting=_read_only(self._waiting),
            freed=_read_only(freed),
            started_round=_read_only(self._flight.started_round),
            started_s=_read_only(self._flight.started_s),
            signals={},
        )

    def _drop(self, clients: IntArray) -> FloatArray:
        """Break off work in flight, whose clients are idle at once; the joules it has cost."""
        if np.any(~self._flight.busy(clients)):
            raise ValueError(f"round {self.round}: a strategy drops work of clients that do not work: {clients}")
        dropped = self._flight.take(clients)
        self._idle[clients] = True
        return self._spent_j(dropped, self.now_s - dropped.started_s)

    def _start(self, plan: RoundPlan) -> None:
        starts, fleet = plan.starts, self.fleet
        if not np.all(self._idle[starts]) or len(_distinct([starts])) != len(starts):
            raise ValueError(f"round {self.round}: a strategy starts clients twice or that are not idle: {starts}")
        takes_s = fleet.latency_s[starts]
        self._work[starts] = 1.0
        if plan.local_steps is not None or plan.uploads == "in-turn":
            if plan.local_steps is not None:
                self._work[starts] = plan.local_steps / fleet.local_steps[starts]
            takes_s = self._parts_s(starts, plan.uploads == "in-turn")
        self._flight.launch(starts, self.version, self.round, self.now_s, takes_s, takes_s)
        self._idle[starts] = False

    def _parts_s(self, starts: IntArray, in_turn: bool) -> FloatArray:
        """Seconds until each start lands, put together from its compute and upload time."""
        compute_s = self._work[starts] * self.fleet.compute_s[starts]
        upload_s = self.fleet.upload_s[starts]
        if np.any(np.isnan(compute_s + upload_s)):
            raise InputError("this strategy needs compute_s and upload_s of every client; add both columns to the file")
        if not in_turn:
            return compute_s + upload_s
        takes_s = np.empty(len(starts))
        for index in range(len(starts)):
            begin_s = max(self._channel_free_s, self.now_s + compute_s[index])
            self._channel_free_s = begin_s + upload_s[index]
            takes_s[index] = self._channel_free_s - self.now_s
        return takes_s

    def _closing_s(self, closes: Closing) -> tuple[float, str]:
        """When the round closes, and a note if that is because nothing could close it."""
        flight = self._flight
        match closes:
            case Arrivals(count=count):
                close_s = flight.nth_arrival_s(count)
            case AllOf(clients=clients):
                close_s = flight.last_arrival_s(clients)
            case AnyOf(groups=groups):
                ends_s = [flight.last_arrival_s(group) for group in groups]
                close_s = min((end_s for end_s in ends_s if end_s > -np.inf), default=np.inf)
            case _:
                close_s = np.inf
        if close_s > closes.by_s * (1 + TOLERANCE):
            close_s = closes.by_s
        if close_s < np.inf:
            return max(self.now_s, close_s), ""
        return max(self.now_s, flight.final_arrival_s()), "nothing in flight could close the round"

    def _land(self) -> Updates:
        """Updates that have arrived by now; they wait at the server."""
        landed = self._flight.land(self.now_s)
        self._idle[landed.client] = True
        self._waiting[landed.client] += 1
        self._freed.append(landed.client)
        self._at_server = Updates.join(self._at_server, landed)
        return landed

    def _merge(self, merge: Merge) -> Updates:
        """Take merged and dropped updates from the server; a new version if any was merged."""
        here = self._at_server
        merged, dropped = np.isin(here.id, merge.updates), np.isin(here.id, merge.drops)
        leaving = merged | dropped
        if np.count_nonzero(leaving) != len(merge.updates) + len(merge.drops):
            raise ValueError(f"round {self.round}: a strategy merges or drops updates twice or that are not there")
        if len(merge.weights) != len(merge.updates) or not np.all(merge.weights >= 0):
            raise ValueError(f"round {self.round}: a merge needs one weight >= 0 per update, got {merge.weights}")
        np.subtract.at(self._waiting, here.client[leaving], 1)
        self._freed.append(here.client[leaving])
        self._at_server = here[~leaving]
        self.version += bool(merged.any())
        return here[merged]

    def _spent_j(self, updates: Updates, elapsed_s: FloatArray | float) -> FloatArray:
        """Joules for computing and for sending so long after the start, (2,); NaN where the fleet does not know."""
        clients, fleet = updates.client, self.fleet
        upload_s = fleet.upload_s[clients]
        computed = elapsed_s / (self._work[clients] * fleet.compute_s[clients])
        sent = (elapsed_s - (updates.expected_s - upload_s)) / upload_s
        compute_j = np.clip(computed, 0, 1) * self._work[clients] * fleet.compute_j[clients]
        return np.array([compute_j.sum(), (np.clip(sent, 0, 1) * fleet.transmit_j[clients]).sum()])


def simulate(
    strategy: Strategy,
    fleet: Fleet,
    *,
    rounds: int | None = None,
    until_s: float = np.inf,
    model_bits: float = 100e3,
    seed: int = 0,
) -> Iterator[RoundRecord]:
    """A record per round, for so many rounds or while they end by `until_s`; fewer if nothing more can happen."""
    if rounds is None and until_s == np.inf:
        raise InputError("rounds or until_s must be given: a run has to end")
    simulation = Simulation(strategy, fleet, model_bits=model_bits, seed=seed)
    while (rounds is None or simulation.round < rounds) and not simulation.over:
        record = simulation.step()
        if record.end_s > until_s * (1 + TOLERANCE):
            return
        yield record


def first_tier_note(fleet: Fleet) -> str:
    """What was done about an empty tier 1, for people; empty if nothing."""
    if fleet.promoted is None:
        return ""
    client, real_s = fleet.promoted.client, fleet.promoted.latency_s
    return (
        f"tier 1 would be empty: the fastest client, {fleet.names[client]}, "
        f"is taken as {fleet.latency_s[client]:g} s instead of {real_s:.4g} s"
    )


def _known(joules: float) -> float | None:
    return None if np.isnan(joules) else float(joules)


def _distinct(parts: list[IntArray]) -> IntArray:
    """Every number of these arrays once, sorted. Several times faster here than numpy's own union."""
    numbers = np.sort(np.concatenate([NO_CLIENTS, *parts]))
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])] if len(numbers) else numbers


def _read_only(array: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
    view = array.view()
    view.flags.writeable = False
    return view
