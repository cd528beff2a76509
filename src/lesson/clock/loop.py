"""Round loop. Each step opens a round, starts clients, waits until the round closes, and aggregates arrived updates.

Without a learner, the loop only keeps track of time. The cost of a round depends on the clients that start, arrive or
are aggregated in it, not on the size of the fleet; only `Arrivals` with a count above 1 looks at all clients.
"""

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lesson.clock.estimates import TIMES
from lesson.clock.in_flight import InFlight
from lesson.clock.records import RoundRecord, first_tier_note
from lesson.clock.rejections import Rejection, RejectionLedger
from lesson.core.arrays import (
    NO_CLIENTS,
    BoolArray,
    FloatArray,
    IntArray,
    all_distinct,
    copied,
    distinct,
    membership,
    read_only,
    with_prefix,
)
from lesson.core.errors import InputError
from lesson.core.random import stream
from lesson.fleet.fleet import Fleet
from lesson.fleet.tiers import TOLERANCE
from lesson.settings.guards import GuardSettings
from lesson.strategies.base import AllOf, AnyOf, Arrivals, Closing, Merge, RoundPlan, ServerView, Strategy, Updates
from lesson.strategies.checks import checked_merge, checked_plan

MAX_ROUNDS_STUCK, MAX_ROUNDS_EMPTY = 1000, 100
MAX_NAMED = 5
"""Maximum number of clients that a note lists by name."""
NOBODY = "no client is connected any more"
_SHOWN = (*TIMES, "local_steps", "num_samples", "client_weight")
_VALUES = ("round", "version", "now_s", "stop_reason", "_rounds_stuck", "_rounds_empty")


class Learner(Protocol):
    """Trains and aggregates models. Without a learner, a simulation only keeps track of time."""

    def merge(
        self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int
    ) -> Sequence[Rejection]:
        """Create version + 1 by aggregating the updates with their weights; return the updates that were rejected.

        If all are rejected, and the merge has no groups with weights, there is no new version.
        """
        ...

    def forget(self, version: int) -> None:
        """Free a model version that no update in flight or at the server started from."""
        ...

    def signals(self, names: frozenset[str], version: int) -> Mapping[str, Any]:
        """Return those of the named signals that are available for a version; each is computed when it is accessed."""
        ...


class RoundLoop:
    """Runs a strategy on a fleet whose updates arrive exactly as expected. `step` runs one round.

    The loop works on `strategy`, a copy of the object it is given, so one object can drive any number of simulations.
    The copy includes any state that the object has from earlier calls of its methods.
    """

    def __init__(
        self,
        strategy: Strategy,
        fleet: Fleet,
        *,
        learner: Learner | None = None,
        seed: int = 0,
        guards: GuardSettings | None = None,
    ) -> None:
        _check_weights(fleet.client_weight)
        self.strategy, self.fleet, self.learner, self.seed = _copied(strategy), fleet, learner, seed
        self.model_bytes = math.ceil(fleet.model_bits / 8)
        unmeasured = np.isnan(fleet.compute_j).all() or np.isnan(fleet.transmit_j).all()
        self._unmeasured_j = np.nan if unmeasured else 0.0
        """Added to the energy of every round: NaN if no client's energy is known, even in rounds without updates."""
        self.round = self.version = 0
        self.now_s = 0.0
        self.stop_reason = ""
        """Why the run has ended; empty while it continues."""
        self._known = {name: read_only(getattr(fleet, name)) for name in _SHOWN}
        self._known["first_latency_s"] = self._known["latency_s"]
        self._flight = InFlight(len(fleet))
        self._at_server = self._flight.work_of(NO_CLIENTS)
        self._idle, self._connected = fleet.reachable, fleet.reachable
        self._num_connected = int(np.count_nonzero(self._idle))
        self._waiting: IntArray = np.zeros(len(fleet), dtype=np.int64)
        self._freed: list[IntArray] = [np.flatnonzero(self._idle)]
        self._work: FloatArray = np.ones(len(fleet))
        self._in_turn: BoolArray = np.zeros(len(fleet), dtype=np.bool_)
        now: dict[str, npt.NDArray[Any]] = {"connected": self._connected, "idle": self._idle, "waiting": self._waiting}
        now |= {"started_round": self._flight.started_round, "started_s": self._flight.started_s}
        self._known |= {name: read_only(array) for name, array in now.items()}
        self._rounds_stuck = self._rounds_empty = 0
        self._users: dict[int, int] = {}
        """Number of updates in flight or at the server that started from each version."""
        self.rejection_ledger = RejectionLedger(len(fleet), (guards or GuardSettings()).exclude_after_rejections)
        self._rejections: list[Rejection] = []
        """Updates rejected since the last record."""
        self._rejected_on_arrival = self._at_server
        """Updates rejected on arrival since the last record, because of their content."""

    def step(self, until_s: float = np.inf) -> RoundRecord | None:
        """Run the next round and return its record; None if the run has ended, which `stop_reason` explains.

        A round that would close after `until_s`, or never, ends the run.
        """
        start_s = self.now_s
        if not self._opens(until_s):
            return None
        self.round += 1
        view = self._view(distinct(self._freed))
        plan = self.strategy.open_round(view, stream(self.seed, "strategy", self.round))
        plan = checked_plan(plan, self.strategy, self.round)
        self._freed.clear()
        spent_j = self._drop(plan.drops)
        self._start(plan)
        end_s, note = self._close(plan.closes, until_s)
        if end_s > until_s * (1 + TOLERANCE) or math.isinf(end_s):
            self.stop_reason = (
                "time limit reached" if end_s > until_s else "the round cannot close: its clients never arrive"
            )
            return None
        self.now_s = end_s
        landed = self._land()
        merge = self.strategy.merge(self._view(NO_CLIENTS), self._at_server)
        merged = self._merge(checked_merge(merge, self.strategy, self.round))
        newly_excluded = self.rejection_ledger.reject(self._rejections)
        excluded_j, exclusion_note = (
            self._exclude(np.array(sorted(newly_excluded), dtype=np.int64)),
            self._why_excluded(newly_excluded),
        )
        arrived, rejections = Updates.join(landed, self._rejected_on_arrival), tuple(self._rejections)
        uploads = len(arrived)
        self._rejections, self._rejected_on_arrival = [], self._flight.work_of(NO_CLIENTS)
        moved = len(plan.starts) or len(plan.drops) or uploads or len(merged) or self.now_s > start_s
        self.stop_reason = self._find_stop_reason(bool(moved), until_s)
        promoted = first_tier_note(self.fleet) if self.round == 1 else ""
        notes = [plan.note, note, promoted, exclusion_note, self.stop_reason]
        spent_j += excluded_j + self._spent_j(arrived, np.inf) + self._unmeasured_j
        return self._extend_record(
            landed,
            RoundRecord(
                round=self.round,
                start_s=start_s,
                end_s=self.now_s,
                version=self.version,
                started=plan.starts,
                merged=merged.client,
                staleness=self.version - 1 - merged.base_version,
                merged_started_s=merged.started_s,
                merged_expected_s=merged.expected_s,
                merged_arrived_s=merged.arrived_s,
                uploads=uploads,
                bytes_up=uploads * self.model_bytes,
                bytes_down=len(plan.starts) * self.model_bytes,
                compute_j=known_j(spent_j[0]),
                transmit_j=known_j(spent_j[1]),
                note="; ".join(filter(None, notes)),
                rejections=rejections,
                excluded=tuple(newly_excluded),
            ),
        )

    def _opens(self, until_s: float) -> bool:  # noqa: ARG002
        """Return whether another round opens; if not, set `stop_reason`.

        After the first round, this requires a connected client, or an update in flight or at the server.
        """
        if self._num_connected or len(self._flight) or len(self._at_server) or not self.round:
            return True
        self.stop_reason = self._no_clients_reason()
        return False

    def _no_clients_reason(self) -> str:
        """Return the stop reason for a run without connected clients, with the number of excluded ones."""
        num_excluded = int(np.count_nonzero(self.rejection_ledger.excluded))
        return NOBODY if not num_excluded else f"{NOBODY}; {num_excluded} of {len(self.fleet)} clients were excluded"

    def _extend_record(self, landed: Updates, record: RoundRecord) -> RoundRecord:  # noqa: ARG002
        """Return the record of a round in which these updates arrived; subclasses add fields."""
        return record

    def _view(self, freed: IntArray) -> ServerView:
        needs, learner = self.strategy.needs, self.learner
        return ServerView(
            round=self.round,
            version=self.version,
            now_s=self.now_s,
            num_connected=self._num_connected,
            freed=read_only(freed),
            signals={} if learner is None or not needs else learner.signals(needs, self.version),
            **self._known,
        )

    def _drop(self, clients: IntArray) -> FloatArray:
        """Cancel the local training of busy clients, which become idle; return the joules it has cost, shape (2,)."""
        if not len(clients):
            return np.zeros(2)
        self._check_clients(clients, "drops")
        self._check(all_distinct(clients) and np.all(self._flight.busy(clients)), "drops clients that are not training")
        dropped = self._flight.take(clients)
        self._let_go(dropped)
        return self._spent_j(dropped, self.now_s - dropped.started_s)

    def _let_go(self, updates: Updates) -> None:
        """Discard updates that were taken out of flight; their clients become idle if they are connected."""
        self._release(updates)
        self._idle[updates.client] = self._connected[updates.client]
        self._freed.append(updates.client)

    def _start(self, plan: RoundPlan) -> None:
        """Check the plan and start its clients."""
        starts, fleet = plan.starts, self.fleet
        self._check_clients(starts, "starts")
        self._check(np.all(self._idle[starts]), "starts clients that are not idle")
        self._check(all_distinct(starts), "starts clients twice")
        self._check(np.size(plan.lr_scale) in (1, len(starts)), "must give one lr_scale per start")
        usable = np.all(np.greater_equal(plan.lr_scale, 0) & np.isfinite(plan.lr_scale))
        self._check(usable, "gives an lr_scale that is negative or not finite")
        self._check(plan.tiers is None or len(plan.tiers) == len(starts), "must give one tier per start")
        steps = fleet.local_steps[starts] if plan.local_steps is None else plan.local_steps
        self._check(len(steps) == len(starts) and np.all(steps >= 1), "must give one number of steps >= 1 per start")
        batches = 1 if plan.batches is None else plan.batches
        fits = np.asarray(batches).dtype.kind == "i" and np.size(batches) in (1, len(starts))
        self._check(fits and np.all(np.greater_equal(batches, 1)), "must give one number of batches >= 1 per start")
        self._check(np.all((np.equal(batches, 1)) | (steps == 1)), "gives several batches to more than one step")
        self._work[starts] = steps * batches / fleet.local_steps[starts]
        self._in_turn[starts] = in_turn = plan.uploads == "in-turn"
        expected_s = fleet.latency_s[starts]
        if plan.local_steps is not None or plan.batches is not None or in_turn:
            expected_s = self._parts_s(starts, in_turn)
        self._flight.launch(
            starts,
            version=self.version,
            round=self.round,
            now_s=self.now_s,
            arrives_s=self._arrives_s(starts, expected_s),
            expected_s=expected_s,
            lr_scale=plan.lr_scale,
            local_steps=steps,
            batches=batches,
        )
        self._idle[starts] = False
        self._users[self.version] = self._users.get(self.version, 0) + len(starts)

    def _arrives_s(self, starts: IntArray, expected_s: FloatArray) -> FloatArray:  # noqa: ARG002
        """Return when the updates of clients that start now actually arrive, given their expected latencies."""
        return self.now_s + expected_s

    def _parts_s(self, starts: IntArray, in_turn: bool) -> FloatArray:
        """Return the expected latency of each start in seconds, the sum of its download, compute and upload time.

        If uploads go in turn, it includes waiting until the channel is free.
        """
        compute_s = self.fleet.download_s[starts] + self._work[starts] * self.fleet.compute_s[starts]
        upload_s = (self.fleet.shared_upload_s if in_turn else self.fleet.upload_s)[starts]
        if np.any(np.isnan(compute_s + upload_s)):
            raise InputError(
                "this strategy needs compute_s and upload_s of every client, only their sum is known; add both columns "
                "to the file of latencies, or take another strategy"
            )
        if not in_turn:
            return compute_s + upload_s
        takes_s = np.empty(len(starts))
        channel_free_s = self._flight.final_arrival_s()
        for index in range(len(starts)):
            channel_free_s = max(channel_free_s, self.now_s + compute_s[index]) + upload_s[index]
            takes_s[index] = channel_free_s - self.now_s
        return takes_s

    def _check_clients(self, clients: IntArray, does: str) -> None:
        """Raise unless all ids are from 0 to num_clients − 1."""
        if len(clients):
            known = clients.min() >= 0 and clients.max() < len(self.fleet)
            self._check(known, f"{does} clients that do not exist: ids go from 0 to {len(self.fleet) - 1}")

    def _check(self, holds: bool | np.bool_, what: str) -> None:
        if not holds:
            raise ValueError(f"round {self.round}: {type(self.strategy).__name__} {what}")

    def _find_stop_reason(self, moved: bool, until_s: float) -> str:  # noqa: ARG002
        """Return why the run ends after this round; an empty string if it continues, at most until `until_s`."""
        self._rounds_stuck = 0 if moved else self._rounds_stuck + 1
        if not moved and not len(self._flight):
            return "no client is training and none can start"
        self._rounds_empty = self._rounds_empty + 1 if self._is_deserted() else 0
        if self._rounds_empty >= MAX_ROUNDS_EMPTY:
            return f"the strategy started no client in {MAX_ROUNDS_EMPTY} rounds"
        return "the strategy neither starts nor aggregates anything" if self._rounds_stuck >= MAX_ROUNDS_STUCK else ""

    def _is_deserted(self) -> bool:
        """Return whether no update is in flight or at the server, and `_clients_gone_for_good` applies."""
        return not len(self._flight) and not len(self._at_server) and self._clients_gone_for_good()

    def _clients_gone_for_good(self) -> bool:
        """Return whether some clients will never take part again and no other client will join."""
        return bool(self.rejection_ledger.excluded.any())

    def _close(self, closes: Closing, until_s: float) -> tuple[float, str]:  # noqa: ARG002
        """Return when the round closes, and a note. A subclass that waits in real time may stop at `until_s`."""
        return self._closing_s(closes)

    def _closing_s(self, closes: Closing) -> tuple[float, str]:
        """Return when the round closes, and a note if nothing in flight can close it.

        In that case it closes with the last arrival, or now if nothing is in flight.
        """
        flight = self._flight
        match closes:
            case Arrivals(count=count):
                close_s = flight.nth_arrival_s(count)
            case AllOf(clients=clients):
                self._check_clients(clients, "waits for")
                close_s = flight.last_arrival_s(clients)
            case AnyOf(groups=groups):
                for group in groups:
                    self._check_clients(group, "waits for")
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
        """Move the updates that have arrived by now to the server and return them, without rejected or lost ones."""
        landed = self._accepted(self._flight.land(self.now_s))
        self.rejection_ledger.receive(landed.client, landed.index)
        self._idle[landed.client] = self._connected[landed.client]
        self._waiting[landed.client] += 1
        self._freed.append(landed.client)
        self._at_server = Updates.join(self._at_server, landed)
        return landed

    def _accepted(self, landed: Updates) -> Updates:
        """Return those of the arrived updates that can be used."""
        return landed

    def _merge(self, merge: Merge) -> Updates:
        """Check and carry out a merge; return the aggregated updates.

        Aggregated and dropped updates leave the server. There is a new version if any update was aggregated, or if
        groups have weights.
        """
        here, weights, groups = self._at_server, merge.weights, merge.groups
        merged, places = membership(here.id, merge.updates)
        leaving = merged | membership(here.id, merge.drops)[0] if len(merge.drops) else merged
        there = np.count_nonzero(leaving) == len(merge.updates) + len(merge.drops)
        self._check(there, "merges or drops an update twice, or one that is not at the server")
        self._check(len(weights) == len(merge.updates), "must give one weight per update")
        self._check(np.all((weights >= 0) & np.isfinite(weights)), "gives a weight that is negative or not finite")
        self._check(groups is None or len(groups.names) == len(merge.updates), "must give one group per update")
        if groups is not None:
            shares, sums = np.array([*groups.weights.values()]), Counter[str]()
            self._check(np.all((shares >= 0) & np.isfinite(shares)), "gives a group a weight that is not a number >= 0")
            for name, weight in zip(groups.names, weights.tolist(), strict=True):
                sums[name] += weight
            self._check(max(sums.values(), default=0.0) <= 1 + 1e-9, "gives weights in a group that sum to more than 1")
        total = weights.sum() if groups is None else sum(groups.weights.values())
        self._check(merge.of == "updates" or total <= 1 + 1e-9, "gives weights of models that sum to more than 1")
        np.subtract.at(self._waiting, here.client[leaving], 1)
        self._freed.append(here.client[leaving])
        self._at_server = here[~leaving]
        updates = here[merged]
        moves = groups is not None and bool(groups.weights)
        if self.learner is not None and (len(updates) or moves):
            rejections = self.learner.merge(updates, weights[places], merge, self.version, self.round)
            updates = updates if not rejections else self._without(updates, rejections)
        if len(updates) or moves:
            self._users.setdefault(self.version, 0)
            self.version += 1
        self.rejection_ledger.accept(updates.client)
        self._release(here[leaving])
        return updates

    def _without(self, updates: Updates, rejections: Sequence[Rejection]) -> Updates:
        """Record the rejections and return the other updates."""
        self._rejections += rejections
        rejected = {(rejection.client, rejection.index) for rejection in rejections}
        return updates[np.array([update not in rejected for update in updates.keys])]

    def _exclude(self, clients: IntArray) -> FloatArray:
        """Exclude clients: cancel their local training and discard their updates.

        Returns the joules that the canceled training has cost, shape (2,).
        """
        if not len(clients):
            return np.zeros(2)
        spent_j = self._drop(clients[self._flight.busy(clients)])
        waiting = np.isin(self._at_server.client, clients)
        gone, self._at_server = self._at_server[waiting], self._at_server[~waiting]
        self._waiting[clients] = 0
        self._release(gone)
        self._disconnect(clients)
        return spent_j

    def _disconnect(self, clients: IntArray) -> None:
        """Mark these clients as disconnected."""
        self._num_connected -= int(np.count_nonzero(self._connected[clients]))
        self._connected[clients] = self._idle[clients] = False

    def _why_excluded(self, newly_excluded: Mapping[int, str]) -> str:
        """Return a note that says which clients are excluded and for which reason."""
        often, told = self.rejection_ledger.exclude_after, []
        for reason in dict.fromkeys(newly_excluded.values()):
            names = [str(self.fleet.names[client]) for client, why in newly_excluded.items() if why == reason]
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            times = f"{often} times in a row" if often > 1 else "once"
            told.append(f"excluded {', '.join(names[:MAX_NAMED])}{more}: rejected {times}, {reason}")
        return "; ".join(told)

    def _release(self, updates: Updates) -> None:
        """Free versions that only these updates started from, and the previous version if no update started from it."""
        versions, counts = (part.tolist() for part in np.unique(updates.base_version, return_counts=True))
        for version, count in zip(versions, counts, strict=True):
            self._users[version] -= count
        for version in sorted({*versions, self.version - 1}):
            if version != self.version and self._users.get(version) == 0:
                del self._users[version]
                if self.learner is not None:
                    self.learner.forget(version)

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return the state of the run for `restore`: values for JSON, and arrays.

        Both are copies, which later rounds do not change.
        """
        values = {name: getattr(self, name) for name in _VALUES} | {
            "users": list(self._users.items()),
            "strategy": self.strategy.state(),
        }
        arrays = {f"flight.{name}": array for name, array in self._flight.state().items()}
        arrays |= {f"server.{name}": getattr(self._at_server, name) for name in Updates.__slots__}
        arrays |= {"idle": self._idle, "waiting": self._waiting, "work": self._work, "in_turn": self._in_turn}
        arrays |= {"freed": distinct(self._freed)}
        arrays |= {f"rejections.{name}": array for name, array in self.rejection_ledger.state().items()}
        return values, copied(arrays)

    def restore(self, values: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from what `state` returned; the run is bit-identical to an uninterrupted one."""
        for name in _VALUES:
            setattr(self, name, values[name])
        self._users = {int(version): int(count) for version, count in values["users"]}
        self.strategy.restore(values["strategy"])
        self._flight.restore(with_prefix(arrays, "flight."))
        self._at_server = Updates(*(arrays[f"server.{name}"] for name in Updates.__slots__))
        self._idle[:], self._waiting[:], self._work[:] = arrays["idle"], arrays["waiting"], arrays["work"]
        self._in_turn[:] = arrays["in_turn"]
        self._freed = [arrays["freed"]]
        self.rejection_ledger.restore(with_prefix(arrays, "rejections."))
        self._connected &= ~self.rejection_ledger.excluded
        self._num_connected = int(np.count_nonzero(self._connected))

    def _spent_j(self, updates: Updates, elapsed_s: FloatArray | float) -> FloatArray:
        """Return the compute and transmit energy of these updates until `elapsed_s` after their start, summed.

        The result is in joules and has shape (2,); it is NaN if the energy of a client is unknown.
        """
        clients, fleet = updates.client, self.fleet
        in_turn = self._in_turn[clients]
        upload_s = np.where(in_turn, fleet.shared_upload_s[clients], fleet.upload_s[clients])
        transmit_j = np.where(in_turn, fleet.shared_transmit_j[clients], fleet.transmit_j[clients])
        computed = (elapsed_s - fleet.download_s[clients]) / (self._work[clients] * fleet.compute_s[clients])
        sent = (elapsed_s - (updates.expected_s - upload_s)) / upload_s
        compute_j = np.clip(computed, 0, 1) * self._work[clients] * fleet.compute_j[clients]
        return np.array([compute_j.sum(), (np.clip(sent, 0, 1) * transmit_j).sum()])


def _copied(strategy: Strategy) -> Strategy:
    """Return a copy of a strategy that shares no state with it."""
    try:
        return copy.deepcopy(strategy)
    except Exception as error:  # a custom strategy may raise anything
        raise InputError(
            f"strategy {type(strategy).__name__} cannot be copied: {error}; give it a __deepcopy__ method, or leave "
            "open files, locks and the like out of its attributes"
        ) from None


def known_j(joules: float) -> float | None:
    """Return the energy for a record: None if it is NaN, that is, unknown."""
    return None if np.isnan(joules) else float(joules)


def _check_weights(weights: FloatArray) -> None:
    """Raise unless client weights are finite, >= 0 and not all 0."""
    wrong = weights[~((weights >= 0) & np.isfinite(weights))]
    if len(wrong) or (len(weights) and not weights.any()):
        got = f"{wrong[0]:g}" if len(wrong) else "0 in all"
        raise InputError(f"client_weight must be >= 0 and finite, and > 0 for some client, got {got}")
