"""Strategies that are to come, reduced to who starts, what closes a round and what is merged.

They show that the protocol carries them; each is only as long as that takes.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lesson import Lesson
from lesson.strategies.base import RoundPlan, ServerView


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


SKETCHES = [AdaptiveSketch]
