"""Strategies that are to come, reduced to who starts, what closes a round and what is merged.

They show that the protocol carries them; each is only as long as that takes.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from lesson import Lesson
from lesson.strategies.base import AllOf, Merge, RoundPlan, ServerView, Updates, average


class Stateless:
    needs: ClassVar[frozenset[str]] = frozenset()

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        assert state == {}


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


SKETCHES = [GreedySketch, AdaptiveSketch]
