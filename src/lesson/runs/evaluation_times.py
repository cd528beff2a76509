"""When a run is evaluated."""

import math

from lesson.clock.records import RoundRecord
from lesson.core.random import stream
from lesson.fleet.tiers import TOLERANCE
from lesson.learn.pipeline import Due
from lesson.settings.sections import RunSettings

NUM_EVALUATIONS = 40


class EvaluationGrid:
    """Decides when a run is evaluated: after the first round that ends at or after each point of a grid.

    The points are the multiples of `eval_every_s` or, for evaluations on the clients' own data, of
    `client_scores_every_s`. Each point is moved to an earlier time by a random share of the interval, at most
    `eval_jitter`. With "auto", the run is divided into 40 equal parts, in simulated time and in rounds as far as these
    are limited, and each part has one point anywhere in it. Points are drawn from the seed and the number of their
    part, so they are the same for every strategy and after a resume. They are out of step with the tiers: multiples of
    500 s would always fall on even rounds of 10 s, in which tier 2 has just been aggregated. Several points in the same
    round cause one evaluation.
    """

    def __init__(self, limits: RunSettings) -> None:
        self._seed, self._jitter = limits.seed, limits.eval_jitter
        self._every_s, self._clients_every_s = limits.eval_every_s, limits.client_scores_every_s
        self._drawn: dict[int, float] = {}
        self._part_s = limits.time_budget_s / NUM_EVALUATIONS
        self._part_rounds = math.inf if limits.rounds is None else limits.rounds / NUM_EVALUATIONS

    def due(self, before_s: float, record: RoundRecord) -> Due:
        """Return which evaluations have a point in this round, after the previous one ended at `before_s`."""
        clients = self._has_point(before_s, record.end_s, self._clients_every_s, self._jitter)
        return Due(self._is_due(before_s, record), clients)

    def _is_due(self, before_s: float, record: RoundRecord) -> bool:
        if self._every_s != "auto":
            return self._has_point(before_s, record.end_s, self._every_s, self._jitter)
        by_time = self._has_point(before_s, record.end_s, self._part_s, 1.0)
        return by_time or self._has_point(record.round - 1, record.round, self._part_rounds, 1.0)

    def _has_point(self, after: float, until: float, part: float, jitter: float) -> bool:
        if math.isinf(part):
            return False
        return self._num_points(until, part, jitter) > self._num_points(after, part, jitter)

    def _num_points(self, until: float, part: float, jitter: float) -> int:
        """Return the number of points in [0, until]: one per complete part, and that of the current part if reached."""
        whole = _multiples(until, part)
        if jitter == 0:
            return whole
        place = 1 - jitter * (1 - self._draw(whole))  # in the part, from 0 to 1
        return whole + ((whole + place) * part <= until)

    def _draw(self, part: int) -> float:
        """Return the random number of a part; cached, as creating a generator takes over 10 µs."""
        if part not in self._drawn:
            self._drawn[part] = stream(self._seed, "evaluation", part).random()
        return self._drawn[part]


def _multiples(until: float, every: float) -> int:
    """Return the number of positive multiples of an interval up to a time."""
    return int(until * (1 + TOLERANCE) / every)
