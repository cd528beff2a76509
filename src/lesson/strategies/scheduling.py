"""Scheduling policies for wireless networks: which clients start if not all do, by estimated data rates, age or turn.

- "round-robin", "proportional-fair": H. Yang et al., "Scheduling Policies for Federated Learning in Wireless Networks",
  2020. Round-robin takes the next clients in the order of their ids. Proportional fairness takes those with the
  highest ratio of the current rate to the mean of their rates when earlier rounds opened, with ties broken at random.
  Estimates change with measured uploads; set `refresh_estimates_every_s` to learn about the channels of idle clients.
  On channels that do not change, all ratios are 1, and the rule is the same as "random".
- "best-channel": those with the highest rates, with ties broken by id. If channels do not change, the others never
  take part.
- "age": H. H. Yang et al., "Age-Based Scheduling Policy for Federated Learning in Mobile Edge Networks", 2020. Those
  whose last aggregated update is the oldest, with ties broken by rate. The paper also assigns subchannels, as
  `[radio] allocation` does.

The cost of a selection grows with the number of clients.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from lesson.core.arrays import NO_CLIENTS, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.strategies.base import ServerView, Updates
from lesson.strategies.shared import draw_some

Rule = Literal["random", "round-robin", "best-channel", "proportional-fair", "age"]


@dataclass(eq=False)
class Scheduler:
    """Selects clients in every round, and remembers what the rules need from earlier rounds."""

    _next: int = 0
    """Client with which the next round of round-robin begins."""
    _merged_round: IntArray = field(default_factory=lambda: NO_CLIENTS)
    """Round in which an update of each client was last aggregated; 0 before the first."""
    _mean_bps: FloatArray = field(default_factory=lambda: np.empty(0))
    """Mean of each client's data rates when earlier rounds opened."""

    def select(self, rule: Rule, clients: IntArray, count: int, view: ServerView, rng: np.random.Generator) -> IntArray:
        """Return `count` of these clients, or all if they are fewer, sorted. It must be called once per round."""
        match rule:
            case "random":
                return draw_some(clients, count, rng)
            case "round-robin":
                chosen = clients[np.argsort((clients - self._next) % len(view.idle), kind="stable")[:count]]
                self._next = int(chosen[-1]) + 1 if len(chosen) else self._next
            case "best-channel":
                chosen = clients[np.argsort(-_rates(rule, view)[clients], kind="stable")[:count]]
            case "proportional-fair":
                chosen = clients[np.lexsort((rng.random(len(clients)), -self._ratios(view)[clients]))[:count]]
            case "age":
                if not len(self._merged_round):
                    self._merged_round = np.zeros(len(view.idle), dtype=np.int64)
                keys = -_rates(rule, view)[clients], self._merged_round[clients]
                chosen = clients[np.lexsort(keys)[:count]]
        return np.sort(chosen)

    def note(self, merged: Updates, round: int) -> None:
        """Record which updates a round aggregates."""
        if len(self._merged_round):
            self._merged_round[merged.client] = round

    def _ratios(self, view: ServerView) -> FloatArray:
        """Return the data rate of each client divided by its mean so far, and update the mean."""
        rate_bps = _rates("proportional-fair", view)
        if not len(self._mean_bps):
            self._mean_bps = rate_bps.copy()
        with np.errstate(divide="ignore", invalid="ignore"):  # a client that could not be reached before
            ratios = rate_bps / self._mean_bps
        self._mean_bps += (rate_bps - self._mean_bps) / view.round
        return ratios


def _rates(rule: Rule, view: ServerView) -> FloatArray:
    """Return the estimated data rate of each client; 0 if it cannot be reached."""
    reachable = np.isfinite(view.latency_s)
    if len(unknown := np.flatnonzero(reachable & ~(view.upload_s > 0))):
        first = unknown[0]
        raise InputError(
            f"select = {rule} needs upload_s > 0 of every client, got {view.upload_s[first]:g} for client {first}; add "
            "it to the file of latencies or, on Flower, the mod report_times to the client app"
        )
    return np.where(reachable, view.rate_bps, 0.0)
