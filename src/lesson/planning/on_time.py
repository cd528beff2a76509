"""Who makes its slot where times vary: LESSON is tried on the clock, without training, and its slots are counted."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from lesson.clock.simulate import Simulation
from lesson.core.arrays import NO_CLIENTS, BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.fleet.fleet import Fleet
from lesson.fleet.tiers import TOLERANCE, UNREACHABLE, assign_tiers
from lesson.settings.settings import Settings
from lesson.strategies import Lesson
from lesson.strategies.base import RoundPlan, ServerView, Updates

UPLOADS_EACH = 20
MIN_ROUNDS, MAX_ROUNDS, MAX_SLOTS = 50, 500, 100_000
"""How long a deadline is tried: until the slowest tier has had its uploads, within these bounds."""
MAX_SLOTS_SHARED = 5_000
"""On a shared band a round costs many times as much: MIN_ROUNDS, and no more slots than this."""
MAX_CLIENTS = 2_000
"""Clients a deadline is tried on, where a client's times do not depend on who else there is."""
SLACK = 5.0
"""Deadlines are looked for up to so many times the slowest estimate: everybody is in tier 1, at ease."""


@dataclass(frozen=True)
class OnTime:
    """Shares of updates that arrive by the end of their slots; None where no slot has ended."""

    share: float | None
    by_tier: Mapping[int, float] = field(default_factory=dict)
    always: bool = False
    """Nothing can be late."""

    def of_tier(self, tier: int) -> float | None:
        """Of the updates that start in a tier."""
        return 1.0 if self.always else self.by_tier.get(tier)


class _Watched(Lesson):
    """LESSON, which notes whether slots are made. A slot begins when a client starts and lasts its tier's deadlines;
    its tier is that of the estimate then. Work that is lost, as its client leaves, has not made it."""

    def __init__(self, deadline_s: float, num_clients: int) -> None:
        super().__init__(deadline_s)
        self._tier: IntArray = np.full(num_clients, UNREACHABLE)
        self._slot_end_s: FloatArray = np.zeros(num_clients)
        """Of the work each client is at; UNREACHABLE where there is none."""
        self._tiers: list[IntArray] = [NO_CLIENTS]
        self._made: list[BoolArray] = [np.zeros(0, dtype=np.bool_)]
        self.num_ended = 0

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        plan = super().open_round(view, rng)
        lost = plan.starts[self._tier[plan.starts] != UNREACHABLE]
        self._end(lost, np.zeros(len(lost), dtype=np.bool_))
        self._tier[plan.starts] = tiers = assign_tiers(view.latency_s[plan.starts], self.deadline_s)
        self._slot_end_s[plan.starts] = view.now_s + tiers * self.deadline_s
        return plan

    def _due(self, view: ServerView, arrived: Updates) -> tuple[Updates, IntArray]:
        left = np.flatnonzero((self._tier != UNREACHABLE) & ~view.connected & (view.waiting == 0))
        self._end(left, np.zeros(len(left), dtype=np.bool_))
        due, drops = super()._due(view, arrived)
        self._end(due.client, np.less_equal(due.arrived_s, self._slot_end_s[due.client] * (1 + TOLERANCE)))
        return due, drops

    def _end(self, clients: IntArray, made: BoolArray) -> None:
        self._tiers.append(self._tier[clients])
        self._made.append(made)
        self._tier[clients] = UNREACHABLE
        self.num_ended += len(clients)

    def on_time(self, now_s: float) -> OnTime:
        """What came of all slots that have ended; whether somebody has arrived in others says nothing yet."""
        missed = np.flatnonzero((self._tier != UNREACHABLE) & (self._slot_end_s <= now_s * (1 + TOLERANCE)))
        self._end(missed, np.zeros(len(missed), dtype=np.bool_))
        if not self.num_ended:
            return OnTime(None)
        made = np.concatenate(self._made)
        tiers, places = np.unique(np.concatenate(self._tiers), return_inverse=True)
        shares = np.bincount(places, made) / np.bincount(places)
        return OnTime(float(made.mean()), dict(zip(tiers.tolist(), shares.tolist(), strict=True)))


def try_deadline(fleet: Fleet, deadline_s: float, settings: Settings | None = None, seed: int = 0) -> OnTime:
    """Which share of updates makes its slot under LESSON; all do where nothing varies.

    Of a large fleet its first clients are tried, where nobody's times depend on the others.
    """
    if settings is None or not settings.varies:
        return OnTime(1.0, always=True)
    shared = settings.radio.spectrum != "fixed"
    if not (shared or settings.fleet.trace or settings.fleet.presence or settings.fleet.positions):
        fleet = fleet.first(MAX_CLIENTS)
    slowest_tier = float(assign_tiers(fleet.latency_s, deadline_s).max())
    rounds = MIN_ROUNDS if shared else int(np.clip(UPLOADS_EACH * slowest_tier, MIN_ROUNDS, MAX_ROUNDS))
    simulation = Simulation(_Watched(deadline_s, len(fleet)), fleet, seed=seed, settings=settings)
    watched = cast("_Watched", simulation.strategy)
    max_slots = MAX_SLOTS_SHARED if shared else MAX_SLOTS
    while simulation.round < rounds and watched.num_ended < max_slots and not simulation.stop_reason:
        simulation.step()
    return watched.on_time(simulation.now_s)


def check_share(share: float) -> None:
    """Raise if no share of updates can be asked for like that."""
    if not 0 < share <= 1:
        raise InputError(f"on_time must be > 0 and <= 1, got {share:g}; 0.9 for nine of ten updates")


def find_deadline_s(
    fleet: Fleet,
    share: float,
    begin_s: float,
    *,
    ensure_first_tier: bool,
    settings: Settings | None = None,
    seed: int = 0,
    tell: Callable[[float], None] | None = None,
) -> float:
    """The first deadline, from `begin_s` on in steps of about a tenth, at which such a share of updates is on time.

    Every deadline that is tried is told before.
    """
    check_share(share)
    deadline_s, limit_s = begin_s, max(begin_s, SLACK * fleet.slowest_s)
    best, best_s = 0.0, begin_s
    while deadline_s <= limit_s:
        if tell is not None:
            tell(deadline_s)
        tried = fleet.with_first_tier(deadline_s) if ensure_first_tier else fleet
        found = try_deadline(tried, deadline_s, settings, seed).share or 0.0
        if found >= share:
            return deadline_s
        best, best_s = max((best, best_s), (found, deadline_s))
        deadline_s = _a_tenth_more(deadline_s)
    raise InputError(
        f"on_time must be at most {math.floor(best * 1000) / 1000:g}, the best of all deadlines up to {limit_s:.3g} s "
        f"(at {best_s:g} s), got {share:g}; ask for less, or let the server expect more: "
        'server.estimate = "quantile", and a larger estimate_quantile'
    )


def _a_tenth_more(seconds: float) -> float:
    """The next deadline to try, to two digits."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{max(1.1 * seconds, seconds + unit):.2g}")
