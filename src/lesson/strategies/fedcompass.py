"""FedCompass: Z. Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices Using
a Computing Power-Aware Scheduler", 2024.

Clients belong to arrival groups, each with an expected arrival time T and a latest one, T_max. An idle client joins the
group in which it can take the most local steps q, Q_min ≤ q ≤ Q_max, and still arrive by T. If there is no such group,
it opens a new one, timed to meet the next arrival of an existing group: that group's T_max plus the time that its
fastest client needs for Q_max steps. For each existing group, the client computes how many steps it can take by then; q
is the largest of these numbers that does not exceed Q_max, but at least Q_min. If all exceed it, q is Q_max. T is the
time at which the client is expected to arrive, and T_max = now + λ·(T − now) with λ = `latest_factor`.

A round closes when a group is complete, when a group reaches T_max, or when a late client arrives. A client that
arrives early waits for its group. A late client starts again at once, and its update waits for the next group. When a
group is complete or reaches T_max, its updates and those of late clients are aggregated: w ← w + α·Σ p·(1 + d)^(−a)·Δ,
with α = `server_lr`, Δ = m − base, d the staleness in versions, and p the client's share of the weights, by
`[training] weighting`, of all connected clients.

Departures: in the paper, the first local training of a client takes Q_max steps, from which its speed is measured, and
its update is aggregated alone; here, the server has latency estimates. Downloads and uploads take time here, which does
not depend on q. A group is complete when no connected client of it is training. Late updates are aggregated even if no
client of the group has arrived by T_max.

The cost of a round grows with the number of clients: the server looks at all of them in every round.
"""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from lesson.core.arrays import NO_CLIENTS, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.validation import NotNegative, Positive
from lesson.fleet.tiers import TOLERANCE
from lesson.strategies.base import AnyOf, CheckedOptions, Deadline, Merge, RoundPlan, ServerView, Updates, shares
from lesson.strategies.shared import Steps, check_compute_times, check_connected

USUAL_RATIO = 5
"""Q_max / Q_min, as in the paper's experiments."""


@dataclass(eq=False)
class Group:
    """Clients that are expected to arrive at the same time."""

    expected_s: float
    latest_s: float
    again_s: float
    """Shortest time in which one of its clients does Q_max steps."""
    pending: set[int] = field(default_factory=set)
    arrived: set[int] = field(default_factory=set)


@dataclass
class FedCompass(CheckedOptions):
    """Clients train as long as it takes to arrive together, in groups."""

    min_steps: Steps | None = None
    """Least number Q_min of local steps. None: the client's usual number, at most `max_steps`."""
    max_steps: Steps | None = None
    """Largest number Q_max of local steps, at least `min_steps`. None: five times Q_min."""
    latest_factor: Annotated[float, Field(ge=1, strict=True)] = 1.5
    """Factor λ of the time after which a group is aggregated without its late clients."""
    server_lr: Positive = 0.9
    """Factor α of the aggregated updates."""
    a: NotNegative = 0.5
    """Exponent by which the weight decreases with staleness, (1 + staleness)^(−a)."""
    _groups: list[Group] = field(default_factory=list, init=False, repr=False)
    _late: set[int] = field(default_factory=set, init=False, repr=False)
    """Clients that are still training although their group has been aggregated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_steps is not None and self.max_steps is not None and self.max_steps < self.min_steps:
            raise InputError(f"max_steps must be >= min_steps = {self.min_steps}, got {self.max_steps}")

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view)
        if view.round == 1:
            check_compute_times("fedcompass", view)
        if any(group.latest_s <= view.now_s for group in self._groups):  # in real time, aggregation takes time
            return RoundPlan(NO_CLIENTS, Deadline(view.now_s))
        waiting = [client for group in self._groups for client in group.arrived]
        starts = np.setdiff1d(np.flatnonzero(view.idle), waiting)
        step_s, transfer_s = _times(view, starts)
        least, most = self._bounds(view.local_steps[starts])
        by_speed = np.argsort(transfer_s + most * step_s, kind="stable")
        columns = (column[by_speed].tolist() for column in (starts, step_s, transfer_s, least, most))
        steps = [self._assign(view.now_s, *client) for client in zip(*columns, strict=True)]
        members = [*(group.pending for group in self._groups), *({client} for client in sorted(self._late))]
        closes = AnyOf(
            [np.array(sorted(clients), dtype=np.int64) for clients in members],
            by_s=min((group.latest_s for group in self._groups), default=np.inf),
        )
        return RoundPlan(starts[by_speed], closes, local_steps=np.array(steps, dtype=np.int64))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        is_latest = arrived.started_round == view.started_round[arrived.client]
        clients = set(arrived.client[is_latest].tolist())
        self._late -= clients
        for group in self._groups:
            group.arrived |= group.pending & clients
            group.pending -= clients
        closed = [group for group in self._groups if _is_over(group, view)]
        if not closed:
            return Merge(NO_CLIENTS, np.empty(0), of="updates")
        self._groups = [group for group in self._groups if group not in closed]
        self._late.update(*(group.pending for group in closed))
        waiting = [client for group in self._groups for client in group.arrived]
        taken = arrived[~(is_latest & np.isin(arrived.client, waiting))]
        staleness = view.version - taken.base_version
        weights = self.server_lr * _shares_of(taken.client, view) * np.float_power(1.0 + staleness, -self.a)
        return Merge(taken.id, weights, of="updates")

    def _bounds(self, usual: IntArray) -> tuple[IntArray, IntArray]:
        """Return Q_min and Q_max of each client, given its usual number of steps."""
        least = usual if self.min_steps is None else np.full_like(usual, self.min_steps)
        if self.max_steps is None:
            return least, USUAL_RATIO * least
        return np.minimum(least, self.max_steps), np.full_like(usual, self.max_steps)

    def _assign(self, now_s: float, client: int, step_s: float, transfer_s: float, least: int, most: int) -> int:
        """Assign a client to a group, new if necessary, and return its number of local steps."""

        def steps_by(arrives_s: float) -> int:
            """Return how many steps the client can take if it has to arrive at a given time; at most Q_max + 1."""
            train_s = arrives_s * (1 + TOLERANCE) - now_s - transfer_s
            if train_s < step_s:
                return 0
            return int(train_s / step_s) if train_s < (most + 1) * step_s else most + 1

        self._late.discard(client)
        for group in self._groups:
            group.pending.discard(client)
        fitting = [(steps, group) for group in self._groups if least <= (steps := steps_by(group.expected_s)) <= most]
        if fitting:
            steps, group = max(fitting, key=lambda fit: fit[0])
        else:
            returns = [steps_by(group.latest_s + group.again_s) for group in self._groups]
            steps = max(least, max((steps for steps in returns if steps <= most), default=most))
            takes_s = transfer_s + steps * step_s
            latest_s = max(now_s + self.latest_factor * takes_s, np.nextafter(now_s, np.inf).item())
            group = Group(now_s + takes_s, latest_s, again_s=np.inf)
            self._groups.append(group)
        group.pending.add(client)
        group.again_s = min(group.again_s, transfer_s + most * step_s)
        return steps


def _is_over(group: Group, view: ServerView) -> bool:
    """Return whether a group has reached its latest time, or none of its clients is training."""
    return group.latest_s <= view.now_s * (1 + TOLERANCE) or not view.busy[list(group.pending)].any()


def _times(view: ServerView, clients: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the time of a local step and of both transfers of each client; 0 and the latency if they are unknown."""
    compute_s = np.nan_to_num(view.compute_s[clients])
    return compute_s / view.local_steps[clients], view.latency_s[clients] - compute_s


def _shares_of(clients: IntArray, view: ServerView) -> FloatArray:
    """Return the weights of these clients divided by the sum over all connected clients and these."""
    everyone = np.union1d(np.flatnonzero(view.connected), clients)
    return shares(view.client_weight[everyone])[np.searchsorted(everyone, clients)]
