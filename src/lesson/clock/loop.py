"""Round loop. `begin` opens a round, starts clients, waits until the round closes, collects arrivals and asks the
strategy what to aggregate; `close` applies this decision.

The loop never touches a model. Its caller aggregates the updates of a round between the two calls, or later if no
update can be rejected. Nor does the loop know whether time is simulated or real: the `World` provides it. The cost of a
round depends on the clients that start, arrive or are aggregated in it, not on the size of the fleet; only `Arrivals`
with a count above 1 looks at all clients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from lesson.clock.budget import EnergyBudget
from lesson.clock.contracts import Contract, copied
from lesson.clock.estimates import TIMES, expected_latency_s
from lesson.clock.ledger import Ledger
from lesson.clock.records import RoundRecord, exclusion_note, exhaustion_note, first_tier_note, rejection_line
from lesson.clock.rejections import Rejection
from lesson.clock.resources import allocated, power_factors, slowdown
from lesson.clock.worlds.base import Collected, World
from lesson.core.arrays import NO_CLIENTS, BoolArray, FloatArray, IntArray, read_only, with_prefix
from lesson.core.random import RepeatedStream
from lesson.core.state import Arrays, restore_state, state_of
from lesson.fleet.allocation import Allocate, Resources, usual_resources
from lesson.fleet.tiers import TOLERANCE, UNREACHABLE
from lesson.strategies.base import AllOf, Deadline, Every, Merge, RoundPlan, ServerView, Strategy, Updates

MAX_ROUNDS_STUCK, MAX_ROUNDS_EMPTY = 1000, 100
NOBODY = "no client is connected anymore"
_SHOWN = (*TIMES, "local_steps", "batch_samples", "num_samples", "client_weight", "compute_j", "transmit_j")
_OF_LEDGER = ("connected", "idle", "busy", "waiting", "started_round", "started_s")


@dataclass(eq=False)
class Round:
    """What has happened in a round so far, and what the strategy decided to aggregate."""

    number: int
    before_s: float
    """When the previous round closed."""
    start_s: float
    until_s: float
    """Time by which all rounds must have closed."""
    plan: RoundPlan
    resources: Resources | None = None
    """Resources of the clients that start; None if all clients have their usual ones."""
    retiered: int = 0
    """Number of clients that started in a different tier than at their previous start."""
    note: str = ""
    """Why the round closed, if that needs an explanation."""
    collected: Collected = field(init=False)
    merge: Merge = field(init=False)
    updates: Updates = field(init=False)
    """Updates to aggregate; after `close`, without those that were rejected."""
    weights: FloatArray = field(init=False)
    """Weight of each update to aggregate."""
    leaving: BoolArray = field(init=False)
    """Which of the updates at the server leave it when the round closes."""
    unused: Sequence[int] = ()
    """Model versions that are no longer in use after `close`."""
    rejections: list[Rejection] = field(default_factory=list)
    exhausted: tuple[int, ...] = ()
    """Clients that cannot afford another update."""
    excluded: Mapping[int, str] = field(default_factory=dict)
    """Clients that were excluded, with the reason."""
    canceled_j: list[FloatArray] = field(default_factory=list)
    """Compute and transmit energy of updates canceled by the plan and by exclusions, in this order."""

    @property
    def aggregates(self) -> bool:
        """Whether the round creates a version, because updates or vectors of groups are aggregated."""
        return bool(len(self.updates)) or (self.merge.groups is not None and self.merge.groups.has_weights)

    @property
    def num_uploads(self) -> int:
        """Number of updates that arrived, rejected ones included."""
        return len(self.collected.arrived) + len(self.collected.unfit)

    @property
    def did_something(self) -> bool:
        """Whether a client started, or an update was dropped, arrived or was aggregated."""
        return bool(len(self.plan.starts) or len(self.plan.drops) or self.num_uploads or len(self.updates))


@final
class RoundLoop:
    """Runs a strategy in a world, one round per `step`, or per `begin` and `close`.

    Args:
        strategy: Strategy object. The loop works on a copy of it, so one object can drive any number of runs.
        world: Provides time, arrivals and latency estimates.
        seed: Random seed of the strategy's choices.
        exclude_after: Number of consecutive rejected updates after which a client is excluded; 0 for never.
        energy_budget_j: Energy that each client may spend; None for no limit.
        allocate: Function that allocates resources to the clients that start; None if they have their usual ones.
        tell: Called with a log line for each rejection and exclusion.

    Attributes:
        signals: Values that the strategy needs, by name, each computed when it is accessed; see `ServerView.signals`.
        round: Number of rounds so far.
        now_s: Current time in seconds since the run began.
        fleet: The fleet as the server knows it, with its current latency estimates.
        ledger: State of all clients and updates.
        stop_reason: Why the run has ended; empty while it continues.
    """

    SAVED = (
        *("round", "now_s", "stop_reason", "_rounds_stuck", "_rounds_empty", "_grid"),
        *("strategy", "ledger", "_budget"),
    )

    def __init__(
        self,
        strategy: Strategy,
        world: World,
        *,
        seed: int = 0,
        exclude_after: int = 0,
        energy_budget_j: float | None = None,
        allocate: Allocate | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        fleet = world.fleet
        self.strategy, self.world, self.seed = copied(strategy), world, seed
        self.signals: Mapping[str, Any] = {}
        self.fleet, self._tell = fleet, tell
        self.ledger = Ledger(world.connected, exclude_after)
        self.round, self.now_s, self.stop_reason = 0, 0.0, ""
        self._allocate = allocate
        self._budget = None if energy_budget_j is None else EnergyBudget(fleet, energy_budget_j)
        if self._budget is not None:
            self.ledger.exhaust(self._budget.take_exhausted(None))
        self.model_bytes = math.ceil(fleet.model_bits / 8)
        self._no_energies = bool(np.isnan(fleet.compute_j).all() or np.isnan(fleet.transmit_j).all())
        """Whether the compute energy or the transmit energy is unknown for all clients."""
        known: dict[str, Any] = {name: read_only(getattr(fleet, name)) for name in _SHOWN}
        known |= {name: read_only(getattr(self.ledger, name)) for name in _OF_LEDGER}
        known["first_latency_s"] = read_only(world.first_latency_s)
        known |= {"upload_bits": fleet.upload_bits, "level_bits": fleet.level_bits}
        known["usual_resources"] = None if fleet.link is None else usual_resources(fleet)
        self._known = [known[name] for name in ServerView.__slots__[7:]]
        """All fields of a view but the first seven, which change from round to round."""
        self._grid = 0.0, 0.0, 0
        """The grid of `Every`: its origin and interval in seconds, and the number of the last point that was used."""
        self._rounds_stuck = self._rounds_empty = 0
        self._begun: Round | None = None
        """The round that `begin` has returned and that has not been closed yet."""
        self._random = RepeatedStream(seed, "strategy")

    @property
    def version(self) -> int:
        """Newest model version."""
        return self.ledger.version

    def step(self, until_s: float = np.inf) -> RoundRecord | None:
        """Run the next round and return its record; None if the run has ended, for the reason in `stop_reason`.

        A round that would close after `until_s`, or never, ends the run, which cannot be continued.
        """
        current = self.begin(until_s)
        return None if current is None else self.close(current)

    def begin(self, until_s: float = np.inf) -> Round | None:
        """Run the next round until the strategy has decided what to aggregate. Call `close` next; None as in `step`."""
        if self._begun is not None:
            raise RuntimeError(f"round {self.round} must be closed before the next one begins")
        if self.stop_reason:
            return None
        before_s = self.now_s
        if not self._open(until_s):
            return None
        plan, resources = self._plan()
        current = Round(self.round, before_s, self.now_s, until_s, plan, resources)
        self._start(current)
        if not self._wait(current):
            return None
        self._collect(current)
        self._decide(current)
        self._begun = current
        return current

    def close(self, round: Round, rejections: Sequence[Rejection] = ()) -> RoundRecord:
        """Apply the strategy's decision, except for rejected updates, and return the record of the round.

        If all updates are rejected, and the merge has no groups with weights, there is no new version.
        """
        if round is not self._begun:
            raise RuntimeError("close takes the round that begin returned last, and takes it once")
        self._begun = None
        self._reject(round, rejections)
        if round.aggregates:
            self.ledger.add_version()
        self.ledger.accept(round.updates.client)
        self.world.release(self.ledger.release(round.leaving))
        if round.rejections:
            self._exclude(round)
        arrived = Updates.join(round.collected.arrived, round.collected.unfit)
        joules = self._energy_j(round, arrived)
        if self._budget is not None:
            self._exhaust(round, self._budget)
        round.unused = self.ledger.take_unused()
        moved = round.did_something or self.now_s > round.start_s
        self.stop_reason = self._find_stop_reason(moved, len(round.plan.starts), round.until_s)
        return self._record(round, arrived, joules)

    def _open(self, until_s: float) -> bool:
        """Advance the clock to the opening of the next round; return False if none opens, which ends the run."""
        open_s = self.world.open(self.ledger, self.round + 1, self.now_s, until_s)
        if open_s == np.inf or open_s > until_s * (1 + TOLERANCE):
            self.stop_reason = self._no_clients_reason() if open_s == np.inf else "time limit reached"
            return False
        self.now_s, self.round = open_s, self.round + 1
        return True

    def _view(self, to_consider: IntArray) -> ServerView:
        ledger = self.ledger
        numbers = self.round, ledger.version, self.now_s, ledger.num_connected, ledger.num_busy
        return ServerView(*numbers, to_consider, self.signals, *self._known)

    def _plan(self) -> tuple[RoundPlan, Resources | None]:
        """Ask the strategy for the plan of the round that opens now, and check it; allocate resources to its starts."""
        view = self._view(read_only(self.ledger.to_consider()))
        plan = self.strategy.open_round(view, self._random.at(self.round))
        plan = Contract(self.strategy, self.round, self.ledger).checked_plan(plan, self.fleet, self.now_s)
        resources = None
        if plan.allocation is not None or self._allocate is not None or self.ledger.resources is not None:
            name = type(self.strategy).__name__
            resources = allocated(plan, name, self._allocate, self.fleet, self.ledger, self.round, self.now_s)
        self.ledger.open_round()
        return plan, resources

    def _start(self, round: Round) -> None:
        """Cancel the local training that the plan drops, and start its clients."""
        plan, fleet = round.plan, self.fleet
        if len(plan.drops):
            round.canceled_j.append(self._cancel(self.ledger.drop(plan.drops)))
        starts, in_turn, samples = plan.starts, plan.uploads == "in-turn", plan.samples
        steps, expected_s = fleet.local_steps[starts], fleet.latency_s[starts]
        compute_scale: FloatArray | float = 1.0
        level = fleet.level if plan.compression is None else plan.compression
        upload_scale = 1.0 if plan.compression is None else fleet.bits_at(level) / fleet.upload_bits
        changed = plan.local_steps is not None or samples is not None or plan.compression is not None
        if changed or in_turn or round.resources is not None:
            usual_steps, steps = steps, steps if plan.local_steps is None else plan.local_steps
            compute_scale = (steps if samples is None else samples / fleet.batch_samples[starts]) / usual_steps
            if round.resources is not None:
                resources = self.ledger.allocate(starts, round.resources)
                compute_scale = compute_scale / round.resources.cpu
                upload_scale = upload_scale * slowdown(fleet, starts, resources)
            times = {"now_s": self.now_s, "free_s": self.ledger.final_arrival_s() if in_turn else -np.inf}
            expected_s = expected_latency_s(fleet, starts, compute_scale, upload_scale, in_turn=in_turn, **times)
        if plan.tiers is not None and self.world.varies:
            before = self.ledger.tier[starts]
            round.retiered = int(np.count_nonzero((before != plan.tiers) & (before != UNREACHABLE)))
        updates = self.ledger.new_updates(
            starts,
            self.round,
            self.now_s,
            expected_s=expected_s,
            lr_scale=plan.lr_scale,
            local_steps=steps,
            samples=fleet.batch_samples[starts] if samples is None else samples,
            tier=UNREACHABLE if plan.tiers is None else plan.tiers,
            level=level,
            compute_scale=compute_scale,
            upload_scale=upload_scale,
            in_turn=in_turn,
        )
        self.ledger.start(updates, self.world.start(updates, self.ledger, self.now_s))

    def _cancel(self, updates: Updates) -> FloatArray:
        """Cancel dropped updates in the world; return the compute and transmit energy used, in joules, shape (2,)."""
        self.world.cancel(updates)
        self.world.release(updates)
        return self._spent_j(updates, self.now_s - updates.started_s)

    def _wait(self, round: Round) -> bool:
        """Advance the clock until the round closes; return False if it does not, which ends the run."""
        closes = round.plan.closes
        if isinstance(closes, Every):
            by_s = self._next_point_s(closes.interval_s)
            closes = Deadline(by_s) if closes.unless_done is None else AllOf(closes.unless_done, by_s)
        until_s = round.until_s
        end_s, round.note = self.world.wait(closes, self.ledger, self.now_s, until_s)
        if end_s > until_s * (1 + TOLERANCE) or math.isinf(end_s):
            never = "the round cannot close: its updates never arrive"
            self.stop_reason = "time limit reached" if end_s > until_s else never
            return False
        self.now_s = end_s
        return True

    def _next_point_s(self, interval_s: float) -> float:
        """Return the next point of the grid. Unless the round opens at the last point, a new grid begins now."""
        origin_s, last_s, number = self._grid
        is_on_grid = interval_s == last_s and abs(origin_s + number * last_s - self.now_s) <= TOLERANCE * self.now_s
        self._grid = (origin_s, interval_s, number + 1) if is_on_grid else (self.now_s, interval_s, 1)
        origin_s, _, number = self._grid
        return origin_s + number * interval_s

    def _collect(self, round: Round) -> None:
        """Move the updates that have arrived to the server."""
        due = self.ledger.collect(self.now_s)
        round.collected = self.world.collect(due, self.ledger, self.now_s)
        arrived = round.collected.arrived
        self.ledger.land(arrived)
        if len(arrived) < len(due):
            unusable = due[~np.isin(due.id, arrived.id)]
            self.ledger.discard(unusable)
            self.world.release(unusable)
        round.rejections += round.collected.rejections

    def _decide(self, round: Round) -> None:
        """Ask the strategy which updates at the server to aggregate."""
        decision = self.strategy.merge(self._view(NO_CLIENTS), self.ledger.at_server)
        round.merge, rows = Contract(self.strategy, self.round, self.ledger).checked_merge(decision)
        round.updates, round.weights, round.leaving = self.ledger.at_server[rows.merged], rows.weights, rows.leaving

    def _reject(self, round: Round, rejections: Sequence[Rejection]) -> None:
        """Remove rejected updates from those to aggregate, and log them."""
        if rejections:
            round.rejections += rejections
            for rejection in rejections:
                self._tell(rejection_line(self.round, self.fleet.names, rejection))
            rejected = {(rejection.client, rejection.index) for rejection in rejections}
            round.updates = round.updates[np.array([key not in rejected for key in round.updates.keys])]

    def _exclude(self, round: Round) -> None:
        """Exclude clients with too many rejected updates, and discard their other updates."""
        round.excluded = self.ledger.count_rejections(round.rejections)
        if round.excluded:
            dropped, released = self.ledger.exclude(np.array(sorted(round.excluded), dtype=np.int64))
            self.world.release(released)
            if len(dropped):
                round.canceled_j.append(self._cancel(dropped))

    def _exhaust(self, round: Round, budget: EnergyBudget) -> None:
        """Disconnect clients for good that cannot afford another update; in round 1, also those before the run."""
        before = self.ledger.exhausted.nonzero()[0] if self.round == 1 else NO_CLIENTS
        clients = budget.take_exhausted(self.ledger.resources)
        clients = clients[~self.ledger.exhausted[clients] & ~self.ledger.busy[clients]]
        self.ledger.exhaust(clients)
        round.exhausted = (*before.tolist(), *clients.tolist())

    def _find_stop_reason(self, moved: bool, num_started: int, until_s: float) -> str:
        """Return why the run ends after this round; an empty string if it continues.

        If nothing happens until a client joins or leaves, the clock advances to that time.
        """
        ledger, change_s = self.ledger, np.inf
        if not ledger.num_in_flight:
            change_s = self.world.next_change_s(self.now_s)
            if not moved and change_s < np.inf:
                if change_s <= until_s * (1 + TOLERANCE):
                    self.now_s = change_s
                    return ""
                if not ledger.num_connected:
                    return "time limit reached"
            if not moved and change_s == np.inf and not ledger.num_connected and self.round > 1:
                return self._no_clients_reason()
        self._rounds_stuck = 0 if moved else self._rounds_stuck + 1
        if not moved and not ledger.num_in_flight:
            return "no client is training and none can start"
        pending = num_started or ledger.num_in_flight or len(ledger.at_server)
        deserted = not pending and ledger.some_are_gone and change_s == np.inf
        self._rounds_empty = self._rounds_empty + 1 if deserted else 0
        if self._rounds_empty >= MAX_ROUNDS_EMPTY:
            return f"the strategy started no client in {MAX_ROUNDS_EMPTY} rounds"
        return "the strategy neither starts nor aggregates anything" if self._rounds_stuck >= MAX_ROUNDS_STUCK else ""

    def _record(self, round: Round, arrived: Updates, joules: tuple[float | None, float | None]) -> RoundRecord:
        """Return the record of a round, and log exclusions. `joules` is the compute and transmit energy."""
        against = ""
        if round.excluded:
            against = exclusion_note(round.excluded, self.fleet.names, self.ledger.exclude_after)
            self._tell(f"round {self.round}: {against}")
        promoted = first_tier_note(self.fleet) if self.round == 1 else ""
        exhausted = exhaustion_note(round.exhausted, self.fleet.names) if round.exhausted else ""
        notes = [round.plan.note, round.note, promoted, against, exhausted, self.stop_reason]
        merged, varies = round.updates, self.world.varies
        bytes_up, bytes_down = round.collected.num_bytes or (
            self._bytes_up(arrived),
            len(round.plan.starts) * self.model_bytes,
        )
        return RoundRecord(
            round=self.round,
            start_s=round.start_s,
            end_s=self.now_s,
            version=self.version,
            started=round.plan.starts.copy(),  # a strategy may use its arrays again in the next round
            tiers=None if round.plan.tiers is None else round.plan.tiers.copy(),
            merged=merged.client,
            merged_index=merged.index,
            staleness=self.version - 1 - merged.base_version,
            merged_started_s=merged.started_s,
            merged_expected_s=merged.expected_s,
            merged_arrived_s=merged.arrived_s,
            uploads=len(arrived),
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            compute_j=joules[0],
            transmit_j=joules[1],
            note="; ".join(filter(None, notes)),
            rejections=tuple(round.rejections),
            excluded=tuple(round.excluded),
            exhausted=round.exhausted,
            misses=_count_misses(round.collected.arrived, round.before_s) if varies else None,
            retiered=round.retiered if varies else None,
            lost=len(round.collected.lost) if varies else None,
        )

    def _bytes_up(self, arrived: Updates) -> int:
        """Return the size of these uploads in bytes."""
        if not self.fleet.level_bits:
            return len(arrived) * self.model_bytes
        return int(np.ceil(self.fleet.bits_at(arrived.level) / 8).sum())

    def _energy_j(self, round: Round, arrived: Updates) -> tuple[float | None, float | None]:
        """Return the compute and transmit energy of all updates that ended in this round; None if unknown."""
        if self._no_energies:
            return None, None
        lost, spent_j = round.collected.lost, self._spent_j(arrived)
        for canceled_j in reversed(round.canceled_j):
            spent_j = canceled_j + spent_j
        if len(lost):
            spent_j = spent_j + self._spent_j(lost, lost.arrived_s - lost.started_s)
        compute_j, transmit_j = spent_j.tolist()
        return None if math.isnan(compute_j) else compute_j, None if math.isnan(transmit_j) else transmit_j

    def _spent_j(self, updates: Updates, elapsed_s: FloatArray | None = None) -> FloatArray:
        """Return the compute and transmit energy of updates, summed, shape (2,); see `World.energy_j`."""
        joules = self.world.energy_j(updates, elapsed_s)
        if (resources := self.ledger.resources) is not None:
            joules = joules * power_factors(resources, updates.client)
        if self._budget is not None:
            self._budget.spend(updates, joules.sum(axis=0))
        spent_j: FloatArray = joules.sum(axis=1)
        return spent_j

    def _no_clients_reason(self) -> str:
        """Return the stop reason for a run without connected clients, and how many were excluded or are exhausted."""
        num_clients, why = int(np.count_nonzero(self.fleet.reachable)), NOBODY  # others may never have taken part
        if num_excluded := int(np.count_nonzero(self.ledger.excluded)):
            why = f"{why}; {num_excluded} of {num_clients} clients were excluded"
        if num_exhausted := int(np.count_nonzero(self.ledger.exhausted)):
            why = f"{why}; {num_exhausted} of {num_clients} clients have used up their energy budgets"
        return why

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Return a copy of the state for `restore`: values that JSON can represent, and arrays."""
        (values, arrays), (world, of_world) = state_of(self), self.world.state(self.ledger)
        return values | {"world": world}, arrays | {f"world.{name}": array.copy() for name, array in of_world.items()}

    def restore(self, values: dict[str, Any], arrays: Arrays) -> None:
        """Restore what `state` returned; in simulated time, the run is then bit-identical to an uninterrupted one."""
        restore_state(self, values, arrays)
        self.ledger.rebuild_queue()
        self.world.restore(values["world"], with_prefix(arrays, "world."), self.ledger, self.now_s)


def _count_misses(arrived: Updates, before_s: float) -> int:
    """Return how many of the updates were expected before the previous round closed."""
    late = arrived.started_s + arrived.expected_s <= before_s * (1 + TOLERANCE)
    return int(np.count_nonzero(late))
