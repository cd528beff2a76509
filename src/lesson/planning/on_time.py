"""Simulated round lengths and shares of updates that arrive by the end of their slots, for times that vary."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from lesson.clock.records import RoundRecord
from lesson.clock.simulate import make_loop, simulate
from lesson.core.arrays import NO_CLIENTS, BoolArray, IntArray
from lesson.core.errors import ArgumentError
from lesson.fleet.fleet import Fleet
from lesson.fleet.tiers import UNREACHABLE, assign_tiers
from lesson.settings.settings import Settings
from lesson.strategies import FedAvg, Lesson
from lesson.strategies.base import Merge, RoundPlan, ServerView, Updates

UPLOADS_EACH = 20
"""A deadline is simulated until the slowest tier has had this many slots."""
MIN_ROUNDS, MAX_ROUNDS, MAX_SLOTS = 50, 500, 100_000
"""Limits of that simulation: rounds, and slots of all clients that have ended."""
MAX_SLOTS_SHARED = 5_000
"""Maximum number of slots on a shared band, where rounds are much slower to simulate and limited to MIN_ROUNDS."""
MAX_CLIENTS = 2_000
"""Maximum number of clients to simulate, unless they share a band or files describe them."""
SLACK = 5.0
"""Deadlines are tried up to this multiple of the slowest client's latency, where all clients are well within tier 1."""


@dataclass(frozen=True)
class OnTime:
    """Share of updates that arrive by the end of their slots, in all and by tier; None if no slot has ended."""

    share: float | None
    by_tier: Mapping[int, float] = field(default_factory=dict)
    always: bool = False
    """Whether no update can be late."""
    round_s: float | None = None
    """Mean round length in the simulation; None if nothing was simulated."""

    def of_tier(self, tier: int) -> float | None:
        """Return the share among updates that started in a tier; None if none of their slots has ended."""
        return 1.0 if self.always else self.by_tier.get(tier)


class SlotCounter:
    """Wraps LESSON and counts which of its updates arrive by the end of their slots.

    A slot begins when a client starts and lasts j rounds, where j is the tier in which the client starts. An update
    that is lost because its client leaves has missed its slot.
    """

    def __init__(self, lesson: Lesson, num_clients: int) -> None:
        self.lesson, self.needs = lesson, lesson.needs
        self._tier: IntArray = np.full(num_clients, UNREACHABLE)
        """Tier of each client's current slot; UNREACHABLE if it has none."""
        self._last_round: IntArray = np.zeros(num_clients, dtype=np.int64)
        """Last round of each client's current slot."""
        self._round = 0
        """Number of rounds that have ended."""
        self._tiers: list[IntArray] = [NO_CLIENTS]
        self._made: list[BoolArray] = [np.zeros(0, dtype=np.bool_)]
        self.num_ended = 0

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        plan = self.lesson.open_round(view, rng)
        assert plan.tiers is not None
        lost = plan.starts[self._tier[plan.starts] != UNREACHABLE]
        self._end(lost, np.zeros(len(lost), dtype=np.bool_))
        self._tier[plan.starts] = plan.tiers
        self._last_round[plan.starts] = view.round + plan.tiers - 1
        return plan

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        left = np.flatnonzero((self._tier != UNREACHABLE) & ~view.connected & (view.waiting == 0))
        self._end(left, np.zeros(len(left), dtype=np.bool_))
        merge = self.lesson.merge(view, arrived)
        due = arrived[np.isin(arrived.id, merge.updates)]
        self._end(due.client, np.less_equal(view.round, self._last_round[due.client]))
        self._round = view.round
        return merge

    def state(self) -> dict[str, Any]:
        return self.lesson.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.lesson.restore(state)

    def _end(self, clients: IntArray, made: BoolArray) -> None:
        self._tiers.append(self._tier[clients])
        self._made.append(made)
        self._tier[clients] = UNREACHABLE
        self.num_ended += len(clients)

    def on_time(self) -> OnTime:
        """Return the shares over all slots that have ended; slots that are still open do not count."""
        missed = np.flatnonzero((self._tier != UNREACHABLE) & (self._last_round <= self._round))
        self._end(missed, np.zeros(len(missed), dtype=np.bool_))
        if not self.num_ended:
            return OnTime(None)
        made = np.concatenate(self._made)
        tiers, places = np.unique(np.concatenate(self._tiers), return_inverse=True)
        shares = np.bincount(places, made) / np.bincount(places)
        return OnTime(float(made.mean()), dict(zip(tiers.tolist(), shares.tolist(), strict=True)))


def simulate_on_time(fleet: Fleet, deadline_s: float, settings: Settings | None = None, seed: int = 0) -> OnTime:
    """Simulate LESSON without training and return the share of updates on time; 1 if times do not vary.

    Of a large fleet, only the first MAX_CLIENTS are simulated, unless they share a band or files describe them.
    Injected faults are not simulated.
    """
    if settings is None or not settings.varies:
        return OnTime(1.0, always=True)
    settings = settings.without_faults()
    shared = settings.radio.spectrum != "fixed"
    if not (shared or settings.fleet.trace or settings.fleet.presence or settings.fleet.positions):
        fleet = fleet.first(MAX_CLIENTS)
    slowest_tier = float(assign_tiers(fleet.latency_s, deadline_s).max())
    rounds = MIN_ROUNDS if shared else int(np.clip(UPLOADS_EACH * slowest_tier, MIN_ROUNDS, MAX_ROUNDS))
    simulation = make_loop(SlotCounter(Lesson(deadline_s), len(fleet)), fleet, seed=seed, settings=settings)
    slots = cast("SlotCounter", simulation.strategy)  # the copy that the simulation runs
    max_slots = MAX_SLOTS_SHARED if shared else MAX_SLOTS
    records = []
    while simulation.round < rounds and slots.num_ended < max_slots and not simulation.stop_reason:
        records.append(simulation.step())
    return replace(slots.on_time(), round_s=_mean_round_s(records))


def simulate_fedavg_round_s(fleet: Fleet, settings: Settings | None = None, seed: int = 0) -> float | None:
    """Return the mean round length of FedAvg: the slowest client's latency or, if times vary, a simulated mean.

    None if no round ends in the simulation. Injected faults are not simulated.
    """
    if settings is None or not settings.varies:
        return fleet.slowest_s
    max_slots = MAX_SLOTS if settings.radio.spectrum == "fixed" else MAX_SLOTS_SHARED
    rounds = int(np.clip(max_slots // len(fleet), 1, MIN_ROUNDS))
    return _mean_round_s(simulate(FedAvg(), fleet, rounds=rounds, seed=seed, settings=settings.without_faults()))


def _mean_round_s(records: Iterable[RoundRecord | None]) -> float | None:
    """Return the mean length of rounds, without the time between them, to nine digits; None if there are none."""
    lengths_s = [record.end_s - record.start_s for record in records if record is not None]
    return float(f"{np.mean(lengths_s):.9g}") if lengths_s else None


def check_share(share: float) -> None:
    """Raise unless a share of updates is > 0 and <= 1."""
    if not 0 < share <= 1:
        raise ArgumentError("on_time", f"must be > 0 and <= 1, got {share:g}; use 0.9 for 90 % of the updates")


def find_deadline_s(
    fleet: Fleet,
    share: float,
    begin_s: float,
    *,
    settings: Settings | None = None,
    seed: int = 0,
    tell: Callable[[float], None] | None = None,
) -> float:
    """Return the first deadline, from `begin_s` on in steps of about 10 %, at which `share` of the updates are on time.

    `tell` is called with each deadline before it is tried. Raises InputError if none up to SLACK times the slowest
    client's latency is long enough.
    """
    check_share(share)
    deadline_s, limit_s = begin_s, max(begin_s, SLACK * fleet.slowest_s)
    best, best_s = 0.0, begin_s
    while deadline_s <= limit_s:
        if tell is not None:
            tell(deadline_s)
        found = simulate_on_time(fleet.at_deadline(deadline_s), deadline_s, settings, seed).share or 0.0
        if found >= share:
            return deadline_s
        best, best_s = max((best, best_s), (found, deadline_s))
        deadline_s = _a_tenth_more(deadline_s)
    raise ArgumentError(
        "on_time",
        f"must be at most {math.floor(best * 1000) / 1000:g}, the best of all deadlines up to {limit_s:.3g} s "
        f"(at {best_s:g} s), got {share:g}; ask for a smaller share, or make latency estimates more conservative: "
        'server.estimate = "quantile" with a larger estimate_quantile',
    )


def _a_tenth_more(seconds: float) -> float:
    """Return the next deadline to try, about 10 % longer and rounded to two digits."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{max(1.1 * seconds, seconds + unit):.2g}")
