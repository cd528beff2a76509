"""Oort: F. Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", 2021.

In every round, round(`overcommitment`·K) clients start, K = `clients_per_round`. The round closes when K updates have
arrived. The first K updates are aggregated, weighted by `[training] weighting`. The other clients are canceled when the
next round opens, and may start again then.

A share ε of the clients that start are new, drawn with probabilities in proportion to 1 / latency; ε is `exploration`
at first and is multiplied by `exploration_decay` in every round, down to `exploration_min`. The others are drawn by
utility. When an update of client i is aggregated, its statistical utility becomes U_i = |B_i|·√(mean of loss²), where
|B_i| is the number of its samples, and the losses are those of the newest model on the first minibatch of its local
training. In round R, U_i is clipped at the 95th percentile and scaled to 0 … 1, the range of all U; √(0.1·ln R / L_i)
is added, where L_i is the round of the last update of i; and if the latency t_i exceeds T, the sum is multiplied by
(T / t_i)^`penalty`. To draw m clients, the server takes those with at least 95 % of the m-th largest utility and draws
m of them with probabilities in proportion to their utilities.

T, the preferred duration of a round, is the latency that a share of the connected clients, `preferred_share` at first,
do not exceed. Every W = `pacer_window` rounds, the share grows by `pacer_step` if the sum of U over the aggregated
updates was smaller in the last W rounds than in the W rounds before. Rounds in which nothing is aggregated do not
count.

Departures: T follows from a share of the clients, and U is scaled to its range, as in the authors' code; in the paper,
T and its step are in seconds, and U is not scaled. Losses are those of the newest model on one minibatch, not those
that the client observes during local training. T is adjusted every W rounds, as in the authors' code, not in every
round. If there are too few clients of one kind, more of the other kind start. No client is excluded after a number of
rounds, and utilities have neither noise nor a fairness term. U_i and L_i are stored before the server's guards check
the update, so updates that they reject count as aggregated ones. Without training, all losses are 1.

The cost of a round grows with the number of clients: the server looks at all of them in every round.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from lesson.core.arrays import NO_CLIENTS, FloatArray, IntArray
from lesson.core.validation import Count, Fraction, NotNegative, Share
from lesson.strategies.base import AllOf, Arrivals, CheckedOptions, Merge, RoundPlan, ServerView, Updates, average
from lesson.strategies.shared import Overcommitment, check_connected

CLIP, CUT_OFF, UNCERTAINTY = 0.95, 0.95, 0.1
LEAST_S, LEAST = 1e-9, 1e-12
"""Smallest latency and smallest utility in a draw, so that every candidate has a chance."""


@dataclass
class Oort(CheckedOptions):
    """Clients with a high loss on many samples start more often, slow clients less often."""

    clients_per_round: Count = 10
    """Number K of updates that are aggregated in a round; in a smaller fleet, those of all clients."""
    overcommitment: Overcommitment = 1.3
    """Factor of K that gives the number of clients that start."""
    exploration: Share = 0.9
    """Share ε of new clients among those that start in the first round."""
    exploration_decay: Fraction = 0.98
    """Factor of ε from round to round."""
    exploration_min: Share = 0.2
    """Smallest ε."""
    penalty: NotNegative = 2.0
    """Exponent α of the factor (T / t)^α of clients slower than T."""
    preferred_share: Fraction = 0.3
    """Share of the clients whose latency is at most T, at first."""
    pacer_step: Share = 0.05
    """Increase of this share when the utility falls."""
    pacer_window: Count = 20
    """Number W of rounds with aggregated updates whose utilities the pacer compares with those of the W rounds
    before."""
    needs: ClassVar[frozenset[str]] = frozenset({"update_loss"})
    _known: dict[int, tuple[float, int]] = field(default_factory=dict, init=False, repr=False)
    """U_i and L_i of each client of which an update has been aggregated."""
    _achieved: list[float] = field(default_factory=list, init=False, repr=False)
    """Sum of U over the aggregated updates in each round of the pacer's two windows, as far as they are complete."""
    _num_steps: int = field(default=0, init=False, repr=False)
    """Number of times that the pacer has increased T."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view)
        clients = np.flatnonzero(view.connected)
        if not len(clients):
            return RoundPlan(NO_CLIENTS, AllOf(NO_CLIENTS))
        note = self._pace(view)
        seen = np.isin(clients, list(self._known))
        new, known = clients[~seen], clients[seen]
        count = min(round(self.overcommitment * min(self.clients_per_round, len(clients))), len(clients))
        explored = max(self.exploration_min, self.exploration * self.exploration_decay ** (view.round - 1))
        num_new = min(len(new), max(round(explored * count), count - len(known)))
        by_speed = 1 / np.maximum(view.latency_s[new], LEAST_S)
        starts = np.concatenate([_draw(new, by_speed, num_new, rng), self._exploit(view, known, count - num_new, rng)])
        closes = Arrivals(min(self.clients_per_round, count))
        return RoundPlan(np.sort(starts), closes, drops=np.flatnonzero(view.busy), note=note)

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        taken = arrived[np.arange(len(arrived)) < self.clients_per_round]
        clients, loss = taken.client, np.ones(len(taken))
        if len(taken) and "update_loss" in view.signals:
            loss = np.nan_to_num(view.signals["update_loss"](taken))
        utility = (view.num_samples[clients] * loss).tolist()
        self._known |= {client: (value, view.round) for client, value in zip(clients.tolist(), utility, strict=True)}
        if utility:
            self._achieved.append(sum(utility))
        return average(view, taken, drops=arrived.id[self.clients_per_round :])

    def _pace(self, view: ServerView) -> str:
        """Increase T if the utility has fallen; return a note if T has changed, else an empty string."""
        window = self.pacer_window
        if len(self._achieved) < 2 * window:
            return ""
        earlier, self._achieved = self._achieved[:window], self._achieved[window:]
        if sum(earlier) <= sum(self._achieved):
            return ""
        before_s = self._preferred_s(view)
        self._num_steps += 1
        now_s = self._preferred_s(view)
        return f"preferred duration {before_s:.4g} s → {now_s:.4g} s: utility has fallen" if now_s > before_s else ""

    def _preferred_s(self, view: ServerView) -> float:
        """Return T in seconds."""
        share = min(1.0, self.preferred_share + self._num_steps * self.pacer_step)
        return float(np.quantile(view.latency_s[view.connected], share))

    def _exploit(self, view: ServerView, clients: IntArray, count: int, rng: np.random.Generator) -> IntArray:
        """Draw clients by utility from those above the cut-off."""
        if count >= len(clients) or not count:
            return clients[:count]
        utility = self._utilities(view, clients)
        admitted = utility >= CUT_OFF * np.sort(utility)[-count]
        return _draw(clients[admitted], utility[admitted], count, rng)

    def _utilities(self, view: ServerView, clients: IntArray) -> FloatArray:
        """Return the utility of clients of which an update has been aggregated, shape (len(clients),)."""
        statistical, last = np.array([self._known[client] for client in clients.tolist()]).T
        clipped, span = np.minimum(statistical, np.quantile(statistical, CLIP)), np.ptp(statistical)
        scaled = (clipped - statistical.min()) / span if span > 0 else np.ones(len(clients))
        utility = scaled + np.sqrt(UNCERTAINTY * math.log(view.round) / last)
        preferred_s, latency_s = self._preferred_s(view), view.latency_s[clients]
        slow = latency_s > preferred_s
        utility[slow] *= (preferred_s / latency_s[slow]) ** self.penalty
        return np.asarray(utility)


def _draw(clients: IntArray, weights: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """Draw `count` distinct clients with probabilities in proportion to their weights."""
    if count >= len(clients) or not count:
        return clients[:count]
    weights = weights + LEAST
    return rng.choice(clients, count, replace=False, p=weights / weights.sum())
