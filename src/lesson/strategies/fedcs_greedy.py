"""FedCS: T. Nishio and R. Yonetani, "Client Selection for Federated Learning with Heterogeneous Resources in Mobile
Edge", 2019, Algorithm 3: clients share one channel and upload one after the other.

A fraction C = `fraction` of the clients, drawn uniformly, are candidates. The candidate that extends the round least is
selected next, Θ ← Θ + t_upload + max(0, t_compute − Θ), as long as Θ stays within the deadline T_round = `deadline_s`.
All selected clients start at once and upload in that order, each alone on the band of all clients (`shared_upload_s`).
The round closes when the last of them has arrived, at Θ ≤ T_round, or after T_round if no candidate fits. All updates
are aggregated, weighted by `[training] weighting`.

Departures: selection, distribution and aggregation take no time (T_cs = T_d = T_agg = 0), except that a download, if it
is simulated, counts as compute time. The first candidate that does not fit therefore ends the search: no other would
extend the round less. Θ = T_round is allowed, as in the authors' problem statement, where Algorithm 3 has <. C·n is
rounded, not rounded up, and n is the number of connected clients.
"""

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError, UnfitFleetError
from lesson.core.validation import Fraction, PositiveOrInf
from lesson.fleet.tiers import TOLERANCE
from lesson.strategies.base import AllOf, CheckedOptions, Deadline, Merge, RoundPlan, ServerView, Updates, average
from lesson.strategies.shared import check_connected, draw_share


@dataclass
class FedCSGreedy(CheckedOptions):
    """Greedy selection of clients that can upload one after the other within the deadline."""

    deadline_s: PositiveOrInf
    """Deadline T_round, by which all selected clients must have uploaded."""
    fraction: Fraction = 1.0
    """Fraction C of the connected clients that are candidates in a round."""
    has_tiers: ClassVar[bool] = False

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        connected = np.flatnonzero(view.idle)
        if view.round == 1:
            self._check(view)
        asked = draw_share(connected, self.fraction, rng)
        ready_s = view.download_s[asked] + view.compute_s[asked]
        starts = asked[schedule(ready_s, view.shared_upload_s[asked], self.deadline_s)]
        closes = AllOf(starts) if len(starts) else Deadline(view.now_s + self.deadline_s)
        return RoundPlan(starts, closes, uploads="in-turn")

    def _check(self, view: ServerView) -> None:
        check_connected(view)
        reachable = np.flatnonzero(np.isfinite(view.latency_s))
        alone_s = (view.download_s + view.compute_s + view.shared_upload_s)[reachable]
        if np.any(np.isnan(alone_s)):
            raise InputError(
                "fedcs-greedy needs compute_s and upload_s of every client; add both columns to the file of latencies "
                "or, on Flower, the mod report_times to the client app"
            )
        if not np.any(alone_s <= self.deadline_s * (1 + TOLERANCE)):
            fastest = int(np.argmin(alone_s))
            raise UnfitFleetError(
                f"fedcs-greedy has no client to train: none meets deadline_s = {self.deadline_s:g}, the fastest, "
                f"client {reachable[fastest]}, takes {alone_s[fastest]:.4g} s alone; use a longer deadline"
            )

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, arrived)


def schedule(compute_s: FloatArray, upload_s: FloatArray, deadline_s: float) -> IntArray:
    """Return the indices of the selected clients in upload order; ties go to ready clients, then to the smaller index.

    A client that is ready, t_compute ≤ Θ, extends Θ by t_upload; any other, by t_compute + t_upload − Θ. Neither order
    changes as Θ grows, so two sorted lists and a heap of ready clients do in O(n log n) what Algorithm 3 does in O(n²).
    """
    limit_s, alone_s = deadline_s * (1 + TOLERANCE), compute_s + upload_s
    fitting = np.flatnonzero((alone_s <= limit_s) & np.isfinite(alone_s))
    # Both are in reverse order, so that pop() returns the next client.
    computing = fitting[np.argsort(compute_s[fitting], kind="stable")[::-1]].tolist()
    waiting = fitting[np.argsort(alone_s[fitting], kind="stable")[::-1]].tolist()
    compute, upload, alone = compute_s.tolist(), upload_s.tolist(), alone_s.tolist()
    theta_s, picked, ready = 0.0, dict[int, None](), list[tuple[float, int]]()
    while True:
        while computing and compute[computing[-1]] <= theta_s:
            if (who := computing.pop()) not in picked:
                heapq.heappush(ready, (upload[who], who))
        while waiting and compute[waiting[-1]] <= theta_s:
            waiting.pop()
        if not ready and not waiting:
            break
        next_is_ready = not waiting or (ready and ready[0][0] <= alone[waiting[-1]] - theta_s)
        who = heapq.heappop(ready)[1] if next_is_ready else waiting.pop()
        end_s = max(theta_s, compute[who]) + upload[who]
        if end_s > limit_s:
            break
        theta_s, picked[who] = end_s, None
    return np.array(list(picked), dtype=np.int64)
