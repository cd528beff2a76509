"""The adaptive deadline, with scripted signals. Clients as in `test_lesson`; τ begins at 10 s. A tenth and a half of
them are faster than 8.3 s and 23 s. The first look is when round 51 opens, at 500 s.
"""

import json
import math
from typing import Any

import pytest

from helpers.fleets import make_fleet
from helpers.strategies import SignalServer
from lesson import Simulation
from lesson.strategies import LessonAdaptive


class Confirming(SignalServer):
    """The signal grows by the next of these pairs between two looks."""

    def __init__(self, *pairs: tuple[float, float]) -> None:
        self.pairs, self.round = pairs, 0
        super().__init__(
            lambda _: {"confirmation": tuple(map(sum, zip((0, 0), *pairs[: self.round // 50], strict=True)))}
        )

    def merge(self, updates: Any, weights: Any, merge: Any, version: int, round: int) -> list[Any]:
        self.round = round
        return []


def rounds_lengths(strategy: LessonAdaptive, *pairs: tuple[float, float]) -> list[float]:
    """Length of the last round before each look, and of the first one after the last; resumed in every round."""
    simulation = Simulation(strategy, make_fleet([5.0, 16.0, 30.0, 38.0]), model_server=Confirming(*pairs))
    records = []
    for _ in range(50 * len(pairs) + 1):
        resumed = LessonAdaptive(deadline_s=10.0, accumulate=strategy.accumulate)
        resumed.restore(json.loads(json.dumps(simulation.strategy.state(), allow_nan=False)))
        simulation.strategy = resumed
        records.append(simulation.step())
    return [record.end_s - record.start_s for record in (*records[49::50], records[-1])]


def test_the_deadline_follows_the_confirmation() -> None:
    """Nothing was confirmed: τ becomes 10·exp(0.3·0.25) s."""
    assert rounds_lengths(LessonAdaptive(10.0), (0, 2)) == pytest.approx([10, 10 * math.exp(0.3 * 0.25)])


def test_old_measurements_fade_and_bounds_hold() -> None:
    """Looks at 1.0, 1.0 and 0: down by the most, exp(−0.3·0.4); down again, to the bound of 8.3 s. Then, with a fifth
    of what was seen before each change, c = 0.2·4.8 / (0.2·4.8 + 4·9) = 0.026: up by exp(0.3·0.224)."""
    expected = [10, 10 * math.exp(-0.12), 8.3, 8.3 * math.exp(0.3 * (0.25 - 0.96 / 36.96))]
    assert rounds_lengths(LessonAdaptive(10.0), (4, 4), (4, 4), (0, 36)) == pytest.approx(expected)


@pytest.mark.parametrize(("accumulate", "later_s"), [(False, 10.0), (True, 10 * math.exp(2 * 0.3 * 0.13))])
def test_changes_below_5_percent_are_skipped_or_accumulate(accumulate: bool, later_s: float) -> None:
    """Twice c = 0.12: exp(0.3·0.13) = 1.04."""
    strategy = LessonAdaptive(10.0, accumulate=accumulate)
    assert rounds_lengths(strategy, (0.12, 1.0), (0.12, 1.0)) == pytest.approx([10, 10, later_s])
