"""REFL: A. M. Abdelmoniem et al., "REFL: Resource-Efficient Federated Learning", 2023.

In every round, round(`overcommitment`·N) idle clients start, N = `clients_per_round`. The least available clients come
first, with ties broken at random; clients that have started in the last `hold_off` rounds come last. The round closes
when the N clients that were expected to be fastest have arrived, at most `round_limit_s` after it opened. All updates
at the server are aggregated, w ← w + Σ a·Δ, including stale ones of earlier rounds; those more than `max_staleness`
rounds old are dropped. The weights a are in proportion to n·s, with n by `[training] weighting`. For fresh updates, s
is 1; for updates that started r rounds ago, it is (1 − β) / (r + 1) + β·(1 − exp(−Λ / Λ_max)), β = `beta`.

Λ is the signal "update_deviation": how far the update would move the mean of the fresh ones. Λ_max is the largest Λ of
the round. With `adaptive_target`, N is reduced by the number of stale updates that are expected within μ, at most to 1;
μ is the moving average of the durations D of rounds, μ ← 0.75·D + 0.25·μ.

Departures: in the paper, clients predict from their own history how likely they are to be available between μ and 2·μ
from now. Here, the server counts how often a client was not connected when a round opened; if clients never leave,
selection is uniform. The server predicts from its estimates which N clients arrive first. Clients that are held off
start nevertheless if there are too few others. Without Λ, as in simulations without training or in rounds without fresh
updates, s = 1 / (r + 1).

The cost of a round grows with the number of clients: the server looks at all of them in every round.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from lesson.core.arrays import NO_CLIENTS, FloatArray, IntArray
from lesson.core.validation import MAX_COUNT, Count, Flag, PositiveOrInf, Share
from lesson.strategies.base import AllOf, Arrivals, CheckedOptions, Merge, RoundPlan, ServerView, Updates, shares
from lesson.strategies.shared import Overcommitment, check_connected

MEMORY = 0.25
"""Weight of the earlier rounds in μ."""


@dataclass
class Refl(CheckedOptions):
    """The least available clients start first; late updates are aggregated with smaller weights."""

    clients_per_round: Count = 10
    """Number N of clients that a round waits for; in a smaller fleet, all idle clients."""
    overcommitment: Overcommitment = 1.3
    """Factor of N that gives the number of clients that start."""
    round_limit_s: PositiveOrInf = math.inf
    """Maximum length of a round; inf for no limit."""
    hold_off: Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)] = 5
    """Number of rounds in which a client that has started does not start again."""
    max_staleness: Count | None = None
    """Maximum age of an update in rounds. None: no limit."""
    beta: Share = 0.35
    """Weight β of the deviation of stale updates, as opposed to their age."""
    adaptive_target: Flag = False
    """Whether fewer clients start if stale updates are expected in the round."""
    needs: ClassVar[frozenset[str]] = frozenset({"update_deviation"})
    _absences: IntArray = field(default_factory=lambda: NO_CLIENTS, init=False, repr=False)
    """Number of rounds at whose opening each client was not connected."""
    _opened_s: float = field(default=0.0, init=False, repr=False)
    """When the last round opened."""
    _usual_s: float | None = field(default=None, init=False, repr=False)
    """μ; None before the first round has ended."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view)
        self._observe(view)
        target, by_s = self._target(view), view.now_s + self.round_limit_s
        starts = self._select(view, round(self.overcommitment * min(target, len(view.idle))), rng)
        if not len(starts):
            return RoundPlan(NO_CLIENTS, Arrivals(1, by_s) if view.num_busy else AllOf(NO_CLIENTS))
        fastest = np.argsort(view.latency_s[starts], kind="stable")[:target]
        return RoundPlan(starts, AllOf(starts[fastest], by_s))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        age = view.round - arrived.started_round
        expired = age > (math.inf if self.max_staleness is None else self.max_staleness)
        updates = arrived[~expired]
        weights = view.client_weight[updates.client] * self._scale(view, updates, age[~expired])
        return Merge(updates.id, shares(weights), of="updates", drops=arrived.id[expired])

    def _observe(self, view: ServerView) -> None:
        """Count the clients that are not connected, and update μ with the duration of the last round."""
        if not len(self._absences):
            self._absences = np.zeros(len(view.connected), dtype=np.int64)
        self._absences = self._absences + ~view.connected
        if view.round > 1:
            lasted_s = view.now_s - self._opened_s
            self._usual_s = lasted_s + MEMORY * ((lasted_s if self._usual_s is None else self._usual_s) - lasted_s)
        self._opened_s = view.now_s

    def _target(self, view: ServerView) -> int:
        """Return N, reduced by the number of stale updates that are expected within μ if it is adaptive."""
        if not self.adaptive_target or self._usual_s is None:
            return self.clients_per_round
        busy = np.flatnonzero(view.busy)
        expected = np.count_nonzero(view.started_s[busy] + view.latency_s[busy] <= view.now_s + self._usual_s)
        return max(1, self.clients_per_round - int(expected))

    def _select(self, view: ServerView, count: int, rng: np.random.Generator) -> IntArray:
        """Return the idle clients that start, sorted."""
        idle = np.flatnonzero(view.idle)
        if count >= len(idle):
            return idle
        held_off = view.started_round[idle] >= max(1, view.round - self.hold_off)
        order = np.lexsort((rng.random(len(idle)), -self._absences[idle], held_off))
        return np.sort(idle[order[:count]])

    def _scale(self, view: ServerView, updates: Updates, age: IntArray) -> FloatArray:
        """Return the factor s of each update, given its age r in rounds."""
        scale, stale = 1 / (age + 1.0), age > 0
        if not stale.any() or stale.all() or "update_deviation" not in view.signals:
            return scale
        deviation: FloatArray = view.signals["update_deviation"](updates[~stale], updates[stale])
        largest = np.nanmax(deviation, initial=0.0)
        boost = 1 - np.exp(-deviation / largest) if largest > 0 else np.zeros(len(deviation))
        weighed = (1 - self.beta) * scale[stale] + self.beta * boost
        scale[stale] = np.where(np.isnan(deviation), scale[stale], weighed)
        return scale
