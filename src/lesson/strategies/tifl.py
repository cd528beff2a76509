"""TiFL: Z. Chai et al., "TiFL: A Tier-based Federated Learning System", 2020, with its adaptive tier selection.

Clients are divided by latency into `num_tiers` tiers whose sizes differ by at most one (by default five, or one per
client in smaller fleets). In every round, one tier is drawn, and `clients_per_round` of its clients, drawn uniformly,
start (all if it has fewer). The round closes when all of them have arrived; all updates are aggregated, weighted by
`[training] weighting`. A tier can be drawn in at most `credits` rounds; when no tier has credits left, the run ends.

All tiers are equally likely at first. Every `interval` rounds, A_t, the mean accuracy of the model on the held-out data
of tier t's clients, is computed. If A_t of the tier drawn last has not increased since the last computation, the n
tiers with credits are ranked by A_t, lowest first (ties: fastest first), and rank i = 0 … n − 1 gets the probability
(n − i) / D, D = n·(n + 1) / 2. A tier without idle clients keeps its rank but cannot be drawn; the others share its
probability in proportion to their own.

Departures: the numerator and D are those of FLGo's TiFL, which gives every tier with credits a chance. Credits are the
same for all tiers and unlimited by default, because a strategy does not know how many rounds fit into a time budget.
Tiers are formed from the server's estimates, without profiling rounds, and formed again only when a new client joins.
A_t is a mean over the clients that hold data out; a tier without any counts as fully accurate. Without training,
there are no accuracies, and tiers stay equally likely while their credits last.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from lesson.core.arrays import NO_CLIENTS, FloatArray, IntArray
from lesson.core.validation import Count
from lesson.strategies.base import AllOf, CheckedOptions, Merge, RoundPlan, ServerView, Updates, average
from lesson.strategies.shared import check_connected, count_of, cut_tiers, draw_some

USUAL_TIERS = 5


@dataclass
class TiFL(CheckedOptions):
    """One tier trains in each round; tiers with lower accuracy are drawn more often."""

    num_tiers: Count | None = None
    """Number of tiers. None: 5, or the number of reachable clients in the first round if that is less."""
    clients_per_round: Count = 10
    """Number of clients of the drawn tier that start in a round."""
    interval: Count = 20
    """Number of rounds between computations of the tiers' accuracies."""
    credits: Count | None = None
    """Maximum number of rounds in which a tier can be drawn. None: no limit."""
    needs: ClassVar[frozenset[str]] = frozenset({"client_accuracy"})
    _num_drawn: list[int] = field(default_factory=list, init=False, repr=False)
    """Credits that each tier has used, fastest first; empty before the tiers are formed."""
    _probabilities: list[float] = field(default_factory=list, init=False, repr=False)
    _accuracy: list[float] = field(default_factory=list, init=False, repr=False)
    """A_t of each tier as last computed; empty before."""
    _tier: int = field(default=0, init=False, repr=False)
    """Tier drawn last."""
    _members: list[IntArray] = field(default_factory=list, init=False, repr=False)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view, num_tiers=self.num_tiers)
        if not self._members or not np.isin(view.to_consider, np.concatenate(self._members)).all():
            self._make_tiers(view)  # at first, and when a new client joins
        paid = [tier for tier, count in enumerate(self._num_drawn) if self.credits is None or count < self.credits]
        if not paid:
            return RoundPlan(NO_CLIENTS, AllOf(NO_CLIENTS), note="every tier has used up its credits")
        tiers = [tier for tier in paid if np.any(view.idle[self._members[tier]])]
        if not tiers:
            return RoundPlan(NO_CLIENTS, AllOf(NO_CLIENTS), note="no tier with credits has an idle client")
        note = ""
        if (view.round - 1) % self.interval == 0 and "client_accuracy" in view.signals:
            note = self._rank(view.signals["client_accuracy"], paid)
        chances = np.array([self._probabilities[tier] for tier in tiers])
        self._tier = int(rng.choice(tiers, p=chances / chances.sum()))
        self._num_drawn[self._tier] += 1
        members = self._members[self._tier]
        starts = draw_some(members[view.idle[members]], self.clients_per_round, rng)
        return RoundPlan(starts, AllOf(starts), note=note)

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, arrived)

    def _make_tiers(self, view: ServerView) -> None:
        """Divide the fleet into tiers, which are equally likely at first."""
        if not self._num_drawn:
            count = count_of(self.num_tiers, USUAL_TIERS, view)
            self._num_drawn, self._probabilities = [0] * count, [1 / count] * count
        self._members = cut_tiers(view, len(self._num_drawn))

    def _rank(self, client_accuracy: FloatArray, tiers: list[int]) -> str:
        """Compute A_t of all tiers; if that of the tier drawn last has not increased, rank the tiers with credits.

        Returns a note on the ranking; an empty string if there is none.
        """
        before, held = self._accuracy, [client_accuracy[members] for members in self._members]
        known = [accuracy[~np.isnan(accuracy)] for accuracy in held]
        self._accuracy = [float(accuracy.mean()) if len(accuracy) else 1.0 for accuracy in known]
        if not before or self._accuracy[self._tier] > before[self._tier]:
            return ""
        count, ranked = len(tiers), sorted(tiers, key=lambda tier: self._accuracy[tier])
        self._probabilities = [0.0] * len(self._members)
        for rank, tier in enumerate(ranked):
            self._probabilities[tier] = (count - rank) / (count * (count + 1) / 2)
        return f"tier {self._tier + 1} has not gained; from the least accurate: {[tier + 1 for tier in ranked]}"
