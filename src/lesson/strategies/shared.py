"""Types of options, functions and objects that several strategies share."""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError
from lesson.core.validation import Positive
from lesson.fleet.tiers import TOLERANCE
from lesson.strategies.base import Arrivals, CheckedOptions, RoundPlan, ServerView

MAX_STEPS = 10_000_000
"""Largest number of local steps in an option, and of those that a strategy computes from a deadline."""
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS, strict=True)]
Overcommitment = Annotated[float, Field(ge=1, le=100, strict=True)]
"""Number of clients that start for each update that a round waits for."""
StartTimes = Literal["constant", "poisson"]


@dataclass
class StartSchedule:
    """Times at which clients start one by one, whatever arrives: every 1 / rate seconds, or as a Poisson process."""

    num_past: int = 0
    """Number of start times that have passed, if they are equally spaced."""
    next_s: float = 0.0
    nobody_idle: bool = True
    """Whether nobody was idle after the last plan, or before the first; start times until the next one are skipped."""

    def plan(self, rate_per_s: float, times: StartTimes, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        """Return a plan that starts an idle client, drawn uniformly, for each start time since the last plan.

        The round closes with the next arrival or, if somebody is idle, at the next start time.
        """
        earliest_s, num_starts = view.now_s * (1 - TOLERANCE), 0
        if self.nobody_idle and self.next_s < earliest_s:  # skipped at once: there may be very many
            self.num_past = math.ceil(earliest_s * rate_per_s)
            self.next_s = self.num_past / rate_per_s if times == "constant" else view.now_s + _gap_s(rate_per_s, rng)
        while self.next_s <= view.now_s * (1 + TOLERANCE):
            num_starts, self.num_past = num_starts + 1, self.num_past + 1
            constant_s = self.num_past / rate_per_s
            self.next_s = constant_s if times == "constant" else self.next_s + _gap_s(rate_per_s, rng)
        num_idle = view.num_connected - view.num_busy
        starts = draw_idle(view, min(num_starts, num_idle), num_idle, rng)
        self.nobody_idle = len(starts) == num_idle
        return RoundPlan(starts, Arrivals(1) if self.nobody_idle else Arrivals(1, self.next_s))


def _gap_s(rate_per_s: float, rng: np.random.Generator) -> float:
    return float(rng.exponential(1 / rate_per_s))


class AlwaysTraining(CheckedOptions):
    """Base class of strategies in which all connected clients train all the time, and each arrival closes a round."""

    rounds_are_arrivals: ClassVar[bool] = True

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view)
        return RoundPlan(view.to_consider[view.idle[view.to_consider]], Arrivals(1))


@dataclass
class StepPerArrival(AlwaysTraining):
    """Base class of those in which each arrival may change the model by a whole step."""

    _: KW_ONLY
    server_lr: Positive | None = None
    """Step size η of the server. None: 1 / n for the n reachable clients in the first round, so that n steps together
    are as long as one of FedAvg."""
    _eta: float = field(default=0.0, init=False, repr=False)
    """η; 0 before the first round."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        plan = super().open_round(view, rng)
        self._eta = self._eta or self.server_lr or 1 / np.count_nonzero(np.isfinite(view.latency_s))
        return plan


def check_start_times(rate_per_s: float | None, times: StartTimes, concurrency: int | None = None) -> None:
    """Raise if options do not go together."""
    if rate_per_s is None and times != "constant":
        raise InputError(f"start_times has no effect without rate_per_s, got {times}; set both")
    if rate_per_s is not None and concurrency is not None:
        raise InputError(f"concurrency must be unset if rate_per_s is given, got {concurrency}")


def draw_idle(view: ServerView, count: int, num_idle: int, rng: np.random.Generator) -> IntArray:
    """Draw `count` distinct idle clients uniformly; if many are idle, by rejection sampling."""
    num_clients = len(view.idle)
    if num_idle - count < num_clients // 2:
        ready = view.to_consider[view.idle[view.to_consider]]
        idle = ready if len(ready) == num_idle else np.flatnonzero(view.idle)
        return rng.choice(idle, count, replace=False) if num_idle > 1 else idle[:count]
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        who = int(rng.integers(num_clients))
        if view.idle[who]:
            drawn[who] = None
    return np.array(list(drawn), dtype=np.int64)


def check_connected(view: ServerView, **at_most: int | None) -> None:
    """Raise in the first round if no client is reachable, or if an option exceeds the number of reachable clients.

    Options that are None are not checked: their defaults adapt to the fleet.
    """
    if view.round > 1:
        return
    if not (reachable := int(np.count_nonzero(np.isfinite(view.latency_s)))):
        raise InputError(f"no client can be reached: all {len(view.latency_s)} latencies are infinite")
    for name, value in at_most.items():
        if value is not None and value > reachable:
            raise InputError(
                f"[strategy] {name} must be <= {reachable}, the number of clients that can be reached, got {value}"
            )


def check_compute_times(strategy: str, view: ServerView) -> None:
    """Raise if a reachable client, connected or not, has no compute time > 0."""
    unknown = np.flatnonzero(np.isfinite(view.latency_s) & ~(view.compute_s > 0))
    if len(unknown):
        raise InputError(
            f"{strategy} needs compute_s > 0 of every client, got {view.compute_s[unknown[0]]:g} for client "
            f"{unknown[0]}; add it to the file of latencies, or to the first row of a trace; on Flower, use "
            "clock='wall' and add the mod report_times to the client app"
        )


def count_of(setting: int | None, default: int, view: ServerView) -> int:
    """Return the setting; if it is None, the default, or the number of reachable clients if less, but at least 1."""
    if setting is not None:
        return setting
    return max(1, min(default, int(np.count_nonzero(np.isfinite(view.latency_s)))))


def cut_tiers(view: ServerView, num_tiers: int) -> list[IntArray]:
    """Divide all reachable clients by latency into tiers whose sizes differ by at most one, fastest first."""
    known = np.count_nonzero(np.isfinite(view.first_latency_s))
    by_latency = np.argsort(view.first_latency_s, kind="stable")[:known]
    return [np.sort(members) for members in np.array_split(by_latency, num_tiers)]


def draw_share(clients: IntArray, fraction: float, rng: np.random.Generator) -> IntArray:
    """Draw a fraction of these clients uniformly, at least one, and return them sorted.

    If that is all of them, they are returned without using the generator.
    """
    return draw_some(clients, share_of(len(clients), fraction), rng)


def draw_some(clients: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Draw `count` of these clients uniformly and return them sorted.

    If there are no more than `count`, they are returned without using the generator.
    """
    return clients if count >= len(clients) else np.sort(rng.choice(clients, count, replace=False))


def share_of(number: int, fraction: float) -> int:
    """Return a fraction of `number` clients as a whole number: max(1, round(fraction·n))."""
    return max(1, round(fraction * number))
