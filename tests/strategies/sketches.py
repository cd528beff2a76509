"""Strategies that are to come, reduced to who starts, what closes a round and what is merged.

They show that the protocol carries them; each is only as long as that takes.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from lesson import Lesson
from lesson.arrays import IntArray
from lesson.strategies.base import (
    AllOf,
    AnyOf,
    Arrivals,
    Deadline,
    Merge,
    RoundPlan,
    ServerView,
    Slots,
    Updates,
    average,
)
from lesson.tiers import assign_tiers


class Stateless:
    needs: ClassVar[frozenset[str]] = frozenset()

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        assert state == {}


@dataclass
class FedAsyncSketch(Stateless):
    """Every arrival is mixed into the model at once, less if it is stale (Xie et al. 2019)."""

    mixing: float = 0.6

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        return RoundPlan(view.freed[view.idle[view.freed]], Arrivals(1))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        mixing = self.mixing / (1.0 + view.version - arrived.base_version)
        # One after the other: each later one shrinks what the earlier ones contribute.
        kept = np.append(np.cumprod((1 - mixing)[::-1])[::-1][1:], 1.0)
        return Merge(arrived.id, mixing * kept)


@dataclass
class FedBuffSketch(Stateless):
    """Concurrency kept full; the model moves when the buffer is (Nguyen et al. 2022)."""

    buffer_size: int = 3
    concurrency: int = 2

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        idle = np.flatnonzero(view.idle)
        missing = self.concurrency - (view.num_connected - len(idle))
        return RoundPlan(rng.choice(idle, size=missing, replace=False), Arrivals(1))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        if len(arrived) < self.buffer_size:
            return Merge(arrived.id[:0], np.empty(0), of="updates")
        staleness = view.version - arrived.base_version
        return Merge(arrived.id, 1 / np.sqrt(1.0 + staleness) / len(arrived), of="updates")


@dataclass
class FedATSketch(Stateless):
    """Tiers synchronous inside and asynchronous across; rarer tiers weigh more (Chai et al. 2021)."""

    edges_s: tuple[float, ...] = (10.0, 20.0)
    merges: dict[int, int] = field(default_factory=dict)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        groups = self._groups(view)
        starts = [group for group in groups if np.all(view.idle[group])]
        return RoundPlan(np.sort(np.concatenate(starts)), AnyOf(groups))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        tier_of = np.searchsorted(self.edges_s, view.latency_s[arrived.client])
        done = [
            tier
            for tier, group in enumerate(self._groups(view))
            if np.all(np.isin(group, arrived.client[tier_of == tier]))
        ]
        taken = arrived[np.isin(tier_of, done)]
        tiers = tier_of[np.isin(tier_of, done)]
        for tier in done:
            self.merges[tier] = self.merges.get(tier, 0) + 1
        total = sum(self.merges.values())
        last = len(self.edges_s)
        slots = {f"tier {tier}": self.merges.get(last - tier, 0) / total for tier in range(last + 1)}
        weights = 1 / np.bincount(tiers)[tiers] if len(tiers) else np.empty(0)
        return Merge(taken.id, weights, slots=Slots([f"tier {tier}" for tier in tiers], slots))

    def state(self) -> dict[str, Any]:
        return {"merges": sorted(self.merges.items())}

    def restore(self, state: dict[str, Any]) -> None:
        self.merges = dict(state["merges"])

    def _groups(self, view: ServerView) -> list[IntArray]:
        tiers = np.searchsorted(self.edges_s, view.latency_s)
        return [np.flatnonzero(tiers == tier) for tier in range(len(self.edges_s) + 1)]


@dataclass
class GreedySketch(Stateless):
    """One channel, used in turn; picked by the smallest growth of the schedule (Nishio and Yonetani 2019)."""

    deadline_s: float = 12.0

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        chosen: list[int] = []
        elapsed_s = 0.0
        left = set(np.flatnonzero(view.idle).tolist())
        while left:
            growth = {who: view.upload_s[who] + max(0.0, view.compute_s[who] - elapsed_s) for who in left}
            best = min(left, key=lambda who: (growth[who], who))
            left.remove(best)
            if elapsed_s + growth[best] <= self.deadline_s:
                elapsed_s += growth[best]
                chosen.append(best)
        starts = np.array(chosen, dtype=np.int64)
        return RoundPlan(starts, AllOf(starts), uploads="in-turn")

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, arrived)


@dataclass
class SafaSketch(Stateless):
    """A round ends with half of the fleet; who lags by more than the tolerance is called back (Wu et al. 2021)."""

    tolerance: int = 2
    lagging: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        busy = ~view.idle & np.isfinite(view.latency_s)
        self.lagging = np.flatnonzero(busy & (view.round - view.started_round > self.tolerance))
        starts = np.union1d(np.flatnonzero(view.idle), self.lagging)
        return RoundPlan(starts, Arrivals(view.num_connected // 2), drops=self.lagging)

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        names = [f"client {who}" for who in arrived.client]
        share = 1 / len(view.latency_s)
        everybody = {f"client {who}": share for who in range(len(view.latency_s))}
        resets = [f"client {who}" for who in self.lagging]
        return Merge(arrived.id, np.ones(len(arrived)), slots=Slots(names, everybody, resets))


@dataclass
class StepsSketch(Stateless):
    """Everybody trains as many steps as fit the period (Stripelis and Ambite 2021)."""

    period_s: float = 20.0

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        starts = np.flatnonzero(view.idle)
        step_s = view.compute_s[starts] / view.local_steps[starts]
        steps = np.maximum(1, ((self.period_s - view.upload_s[starts]) / step_s).astype(np.int64))
        return RoundPlan(starts, AllOf(starts), local_steps=steps)

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, arrived)


@dataclass
class AdaptiveSketch(Lesson):
    """LESSON whose deadline changes as it goes, and says so."""

    deadline_s: float = 10.0

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        self.deadline_s = self.deadline_s if view.round % 4 else {10.0: 5.0, 5.0: 40.0, 40.0: 10.0}[self.deadline_s]
        return replace(super().open_round(view, rng), note=f"deadline {self.deadline_s:g} s")

    def state(self) -> dict[str, Any]:
        return super().state() | {"deadline_s": self.deadline_s}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.deadline_s = state["deadline_s"]


@dataclass
class MemorySketch(Stateless):
    """The server keeps each tier's latest update and applies all of them in every round."""

    deadline_s: float = 10.0
    filled: dict[str, float] = field(default_factory=dict)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        return RoundPlan(np.flatnonzero(view.idle), Deadline(view.round * self.deadline_s))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        names = [f"tier {tier}" for tier in assign_tiers(arrived.expected_s, self.deadline_s)]
        self.filled |= dict.fromkeys(names, 0.25)
        weights = np.array([1 / names.count(name) for name in names])
        return Merge(arrived.id, weights, of="updates", slots=Slots(names, self.filled))

    def state(self) -> dict[str, Any]:
        return self.filled

    def restore(self, state: dict[str, Any]) -> None:
        self.filled = state


SKETCHES = [
    FedAsyncSketch,
    FedBuffSketch,
    FedATSketch,
    GreedySketch,
    SafaSketch,
    StepsSketch,
    AdaptiveSketch,
    MemorySketch,
]
