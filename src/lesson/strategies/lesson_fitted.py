"""LESSON with work that is fitted to the slot, an extension of L. Yu, X. Sun, R. Albelaihi, C. Yi, "Latency Aware
Semi-synchronous Client Selection and Model Aggregation for Wireless Federated Learning" (see lesson.py) that is not in
the paper.

Clients start, rounds close and updates are due as in LESSON. But the tier of a client is the lowest one in whose slot
of j·τ seconds it can train on `granule` samples, and it then trains on as many multiples of that as fit into the slot,
with one step of size δ along their mean gradient. Due updates are added to the newest model, weighted by `[training]
weighting`, by n / (n + `half_weight_samples`) for n samples, and by 1 / j^`discount`.

Weights: if gradients of samples vary with variance σ² within a client, and mean gradients with variance ς² between
clients, an update on n samples has variance ς² + σ²/n. The weighted mean has the least variance with weights in
proportion to n / (n + σ²/ς²). With `half_weight_samples` = 0, all updates count alike; with inf, samples do.

Several local steps: if `local_steps` > 1 or `local_epochs` is set, or if the number of samples per step is unknown, as
on Flower, clients take as many steps of the usual minibatch as fit, at least one. Updates of k steps are then divided
by k, and their weighted mean is multiplied by the mean of k: the normalization of J. Wang et al., "Tackling the
Objective Inconsistency Problem in Heterogeneous Federated Optimization" (FedNova), 2020.

Related work: a fixed time and as many samples as fit into it are the idea of N. Ferdinand et al., "Anytime Minibatch:
Exploiting Stragglers in Online Distributed Optimization", 2019, which has no tiers. As many steps as fit into a period
are the idea of Stripelis and Ambite; see semisync_steps.py.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError, UnfitFleetError
from lesson.core.validation import BelowOne, Count, Flag, NotNegativeOrInf
from lesson.fleet.tiers import TOLERANCE, UNREACHABLE
from lesson.strategies.base import Merge, RoundPlan, ServerView, Updates, shares
from lesson.strategies.lesson import Lesson
from lesson.strategies.shared import MAX_STEPS, check_compute_times


@dataclass
class LessonFitted(Lesson):
    """LESSON whose clients train on as many samples as fit into their slot."""

    scaling: Flag = False
    """Whether clients of tier j use step size j·δ, Eq. (12), instead of δ."""
    granule: Count = 4
    """Clients train on multiples of this number of samples, or on as many as they hold. Who cannot train on this number
    in time is in a higher tier."""
    margin: BelowOne = 0.0
    """Share of each slot that work beyond the granule leaves free, for clients that take longer than estimated."""
    half_weight_samples: NotNegativeOrInf = 0.0
    """Number of samples with which an update has half of the largest possible weight. 0: all updates count alike; inf:
    in proportion to their samples."""
    discount: Annotated[float, Field(ge=0, le=100, strict=True)] = 2.0
    """Exponent of the weight 1 / j^discount of an update of tier j."""
    max_tier: Count | None = None
    """Clients in higher tiers do not take part, and rounds never close early. None: all clients do."""
    has_tiers: ClassVar[bool] = False
    """Nobody is promoted to tier 1: tiers follow from the granule, not from the usual work."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_tier is not None and math.isinf(self.deadline_s):
            raise InputError("max_tier must be unset if deadline_s is inf: no round would close")

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        plan = super().open_round(view, rng)
        if view.round == 1:
            check_compute_times("lesson-fitted", view)
            if self.max_tier is not None and not len(plan.starts):
                lasts = f"{self.max_tier * self.deadline_s:g} s"
                remedy = "use a longer deadline_s, a smaller granule or a higher max_tier"
                raise UnfitFleetError(
                    f"lesson-fitted has no client to train: none fits {self.granule} samples into {lasts}; {remedy}"
                )
        work = self._fitting(view, plan)
        return replace(plan, samples=work) if _counts_samples(view) else replace(plan, local_steps=work)

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        due, drops = self._due(view, arrived)
        if not len(due):
            return Merge(due.id, np.empty(0), of="updates", drops=drops)
        samples = due.local_steps * np.maximum(1, due.samples)  # of unknown size, minibatches count
        # Relative to the fastest due tier: weights must not underflow to 0 if only slow tiers are due.
        by_tier = np.float_power(due.tier / due.tier.min(), -self.discount)
        weights = shares(view.client_weight[due.client] * self._by_samples(samples) * by_tier)
        weights *= weights @ due.local_steps / due.local_steps
        return Merge(due.id, weights, of="updates", drops=drops)

    def _by_samples(self, samples: IntArray) -> FloatArray:
        """Return weights in proportion to n / (n + half_weight_samples)."""
        if not self.half_weight_samples:
            return np.ones(len(samples))
        return np.asarray(samples / (1 + samples / self.half_weight_samples))

    def _are_all(self, view: ServerView, starts: IntArray) -> bool:
        return self.max_tier is None and super()._are_all(view, starts)

    def _fitted(self, view: ServerView, clients: IntArray, latency_s: FloatArray) -> tuple[IntArray, FloatArray | None]:
        least = self._least(view, clients) / _usual(view, clients)
        with np.errstate(invalid="ignore"):  # inf − inf for unreachable clients
            shortest_s = latency_s - (1 - least) * view.compute_s[clients]
        tiers, levels = super()._fitted(view, clients, shortest_s)
        if self.max_tier is not None:
            tiers = np.where(tiers > self.max_tier, UNREACHABLE, tiers)
        return tiers, levels

    def _fitting(self, view: ServerView, plan: RoundPlan) -> IntArray:
        """Return how many samples, or steps, each client that starts can process until its slot ends."""
        clients, least = plan.starts, self._least(view, plan.starts)
        assert plan.tiers is not None, "plans of LESSON have tiers"
        upload_s = view.upload_s[clients]
        if isinstance(plan.compression, np.ndarray):
            bits = np.array([view.level_bits[level] for level in plan.compression.tolist()])
            upload_s = bits / view.upload_bits * upload_s
        room_s = (1 - self.margin) * plan.tiers * self.deadline_s - upload_s - view.download_s[clients]
        usual = _usual(view, clients)
        with np.errstate(divide="ignore", invalid="ignore"):  # a trace may have compute times of 0
            fitting = np.nan_to_num(room_s / view.compute_s[clients] * usual * (1 + TOLERANCE), nan=0.0)
        if not _counts_samples(view):
            return np.where(np.isfinite(fitting), np.clip(fitting, least, MAX_STEPS), usual).astype(np.int64)
        held = view.num_samples[clients]
        whole = np.floor(np.minimum(fitting, held) / self.granule) * self.granule
        return np.where(fitting >= held, held, np.maximum(least, whole)).astype(np.int64)

    def _least(self, view: ServerView, clients: IntArray) -> IntArray:
        """Return the least number of samples, or steps, of each client."""
        if not _counts_samples(view):
            return np.ones_like(clients)
        return np.minimum(self.granule, view.num_samples[clients])


def _counts_samples(view: ServerView) -> bool:
    """Return whether clients take one step on a known number of samples."""
    return bool(np.all(view.local_steps == 1) and np.all(view.batch_samples > 0))


def _usual(view: ServerView, clients: IntArray) -> IntArray:
    """Return the number of samples, or steps, of each client's usual local training."""
    return (view.batch_samples if _counts_samples(view) else view.local_steps)[clients]
