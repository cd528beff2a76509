"""LESSON: L. Yu, X. Sun, R. Albelaihi, C. Yi, "Latency Aware Semi-synchronous Client Selection and Model Aggregation
for Wireless Federated Learning".

A client starts again after its update has been aggregated; a client of tier j uses step size j·δ, Eq. (12). Round k
closes at k·τ. An update of tier j is due in the j-th round from its start; as long as tiers stay the same, these are
rounds with k % j == 0, Eq. (8). The server counts rounds, not seconds, so time between rounds, such as `[server]
overhead_s`, makes no update late. All due updates are aggregated, weighted by `[training] weighting`, Eq. (10). An
early update waits until it is due.

By Eq. (7), τ·j is the latency, rounded up to a multiple of τ, so the step size j·δ is the quantized form of Rescaled
ASGD (strategies/rescaled_asgd.py), whose steps are in proportion to computation time.

Departures from the paper:
- The paper's server rejects updates that arrive after their deadline. Here they are aggregated at the end of the round
  in which they arrive (`late = "merge"`), so that the training of a client that took longer than estimated is not
  wasted. With `late = "drop"`, they are dropped, as in the paper. If times do not vary, no update is late.
- The paper's server always waits for the deadline. Here, if all clients start together in tier 1, the round closes at
  the last arrival (`close_early = true`), so with τ → ∞, models and times are those of FedAvg. With
  `close_early = false`, round k always closes at k·τ; if times do not vary, the models are the same.
- `participation` limits how many clients of a tier start when its slot begins. They are drawn anew each time, from
  tiers that are fixed by the first estimates, so the cost of a round does not grow with the fleet.
- With `fit_upload`, a client whose upload would put it into a higher tier compresses it, as little as possible.
- Without `scaling`, the step size is δ in every tier.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from lesson.core.arrays import NO_CLIENTS, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.validation import Count, Flag, PositiveOrInf
from lesson.fleet.tiers import UNREACHABLE, assign_tiers, due_round
from lesson.strategies.base import CheckedOptions, Every, Merge, RoundPlan, ServerView, Updates, average


@dataclass
class Lesson(CheckedOptions):
    """Semi-synchronous rounds: clients of tier j upload every j rounds."""

    deadline_s: PositiveOrInf
    """Deadline τ: the length of a round. inf makes rounds like those of FedAvg."""
    late: Literal["merge", "drop"] = "merge"
    """What happens to an update that arrives after its slot: it is aggregated at the end of the round (merge) or
    discarded (drop)."""
    participation: Count | None = None
    """Maximum number of clients of a tier that start when its slot begins. None: all."""
    scaling: Flag = True
    """Whether clients of tier j use step size j·δ, Eq. (12), instead of δ."""
    close_early: Flag = True
    """Whether a round closes at the last arrival, before the deadline, if all clients are in tier 1."""
    fit_upload: Flag = False
    """Whether each client compresses its upload only as much as it must to reach its lowest possible tier; this needs
    [upload] compression."""
    _members: dict[int, IntArray] = field(default_factory=dict, init=False, repr=False)
    """Clients of each tier according to the first estimates; filled when first needed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if math.isinf(self.deadline_s) and not self.close_early:
            raise InputError("close_early must be true if deadline_s is inf: no round would close")

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        asked = view.to_consider if self.participation is None else self._draw(view, self.participation, rng)
        ready = asked[view.idle[asked] & (view.waiting[asked] == 0)]
        tiers, levels = self._fitted(view, ready, view.latency_s[ready])
        reachable = tiers != UNREACHABLE
        starts, tiers = ready[reachable], tiers[reachable]
        closes_early = self.close_early and tiers.max(initial=1) == 1 and self._are_all(view, starts)
        return RoundPlan(
            starts,
            Every(self.deadline_s, unless_done=starts if closes_early else None),
            lr_scale=tiers.astype(np.float64) if self.scaling else 1.0,
            compression=None if levels is None else levels[reachable],
            tiers=tiers,
        )

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, *self._due(view, arrived))

    def _fitted(self, view: ServerView, clients: IntArray, latency_s: FloatArray) -> tuple[IntArray, FloatArray | None]:
        """Return the tier of each client, and its compression level if the strategy chooses it."""
        if not self.fit_upload:
            return assign_tiers(latency_s, self.deadline_s), None
        if not view.level_bits:
            raise InputError("fit_upload needs compressed uploads: set [upload] compression")
        upload_s, levels = view.upload_s[clients], np.array(list(view.level_bits))
        if np.any(np.isnan(upload_s) & np.isfinite(latency_s)):
            raise InputError("fit_upload needs upload_s of every client, but only the latency is known")
        scale = np.array(list(view.level_bits.values()))[:, None] / view.upload_bits
        with np.errstate(invalid="ignore"):  # inf − inf for unreachable clients
            possible_s = np.nan_to_num(latency_s - upload_s + scale * upload_s, nan=np.inf, posinf=np.inf)
        tiers = assign_tiers(possible_s.ravel(), self.deadline_s).reshape(possible_s.shape)
        place = np.where(tiers == UNREACHABLE, np.iinfo(np.int64).max, tiers).argmin(axis=0)  # the first of the lowest
        return tiers[place, np.arange(len(clients))], levels[place]

    def _are_all(self, view: ServerView, starts: IntArray) -> bool:
        """Return whether no client other than `starts` takes part in the round."""
        if not view.num_connected and view.waiting.any():  # nobody is left, but early updates wait until they are due
            return False
        if self.participation is None:
            return len(starts) == view.num_connected
        return set(self._members) == {1} and not view.num_busy

    def _draw(self, view: ServerView, limit: int, rng: np.random.Generator) -> IntArray:
        """Draw up to `limit` clients from each tier whose slot begins now; return them sorted."""
        if not self._members:
            tiers, _ = self._fitted(view, np.arange(len(view.first_latency_s)), view.first_latency_s)
            order = np.argsort(tiers, kind="stable")
            groups = np.split(order, np.flatnonzero(np.diff(tiers[order])) + 1)
            self._members = {int(tiers[group[0]]): group for group in groups if tiers[group[0]] != UNREACHABLE}
        drawn = [
            members[rng.choice(len(members), min(limit, len(members)), replace=False, shuffle=False)]
            for tier, members in self._members.items()
            if (view.round - 1) % tier == 0
        ]
        return np.sort(np.concatenate([NO_CLIENTS, *drawn]))

    def _due(self, view: ServerView, arrived: Updates) -> tuple[Updates, IntArray]:
        """Return the updates to aggregate, which are due now, Eq. (8), and the ids of late ones to drop."""
        due = due_round(arrived.started_round, arrived.tier)
        if self.late == "merge":
            return arrived[due <= view.round], NO_CLIENTS
        return arrived[due == view.round], arrived.id[due < view.round]
