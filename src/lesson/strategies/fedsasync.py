"""FedSaSync: V. Hidalgo-Izquierdo, C. Carrión, B. Caminero, "Semi-asynchronous Federated Learning in Flower: Framework
Extension and Performance Assessment", 2026, arXiv:2606.24230.

In every round, max(1, round(C·n)) idle clients start, C = `fraction` of the n connected clients, drawn uniformly; by
default, all idle ones. The round closes when M = `sync_degree` updates have arrived in it, no matter in which round
their training started. The updates that have arrived replace the model by the mean of their models, weighted by
`[training] weighting`; staleness has no effect. The other clients continue, and count in a later round.

Source: the authors' baseline for Flower (pull request 7503 of flwrlabs/flower, `strategy.py`).

Departures: C·n is rounded to the nearest number instead of down, and at least one client starts instead of two. The
authors' server looks for replies at intervals, so more than M updates may be aggregated; here, only updates that arrive
at the same time as the M-th are. Their last round waits for all clients. If fewer than M clients are training, a round
waits for these.
"""

from dataclasses import dataclass

import numpy as np

from lesson.core.validation import Count, Fraction
from lesson.strategies.base import Arrivals, CheckedOptions, Merge, RoundPlan, ServerView, Updates, average
from lesson.strategies.shared import check_connected, draw_some, share_of

USUAL_SYNC_DEGREE = 10


@dataclass
class FedSaSync(CheckedOptions):
    """Rounds close after a number of arrivals; the other clients continue and are aggregated when they arrive."""

    sync_degree: Count | None = None
    """Number M of arrivals that close a round. None: 10, or the number of clients that are training if that is less."""
    fraction: Fraction = 1.0
    """Fraction C of the connected clients, of which at most so many idle ones start in a round."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view, sync_degree=self.sync_degree)
        starts = draw_some(np.flatnonzero(view.idle), share_of(view.num_connected, self.fraction), rng)
        num_training = view.num_busy + len(starts)
        return RoundPlan(starts, Arrivals(max(1, min(self.sync_degree or USUAL_SYNC_DEGREE, num_training))))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, arrived)
