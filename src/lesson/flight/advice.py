"""Recommends a strategy and a deadline for the clients of a recording, with the reason in a sentence.

Of the strategies that serve the most clients (see MIN_SERVED), the one with the most updates per hour is recommended;
staleness does not matter. This compares schedules, not models: only a simulation with training shows the accuracy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lesson.core.arrays import FloatArray
from lesson.flight.fit import FittedFleet, listed
from lesson.flight.outcomes import (
    MIN_SERVED,
    Candidate,
    Outcome,
    Reality,
    Spread,
    horizon_of,
    is_recorded,
    simulate_candidates,
)
from lesson.planning.plan import round_up

QUANTILES = (0.1, 0.25, 0.5, 0.75, 1.0)
MARGIN = 1.1
"""A deadline to try is this many times the latency that a share of the clients, one of QUANTILES, do not exceed."""
NUM_TRIES = 20
"""Number of replicates with which deadlines are compared."""
MIN_GAIN = 1.01
"""A strategy is recommended instead of the recorded one if the low end of its gain is at least this."""
TIE = 0.99
"""Deadlines with at least this share of the most updates per hour are equally good; the longest is chosen."""


@dataclass(frozen=True, eq=False)
class Advice:
    """A recommendation.

    Attributes:
        sentence: The recommendation and its reason.
        outcome: The recommended outcome; None if there is nothing to recommend.
        gain: Updates per hour relative to `compared_with`; None if nothing is compared.
        compared_with: What the gain refers to.
    """

    sentence: str
    outcome: Outcome | None = None
    gain: Spread | None = None
    compared_with: str = ""


class _Baseline(NamedTuple):
    """The outcome that gains refer to: its name, its updates per hour in each replicate, and how many clients it does
    not serve."""

    label: str
    rates: FloatArray
    num_not_served: int


def recommend(fitted: FittedFleet, reality: Reality, outcomes: Sequence[Outcome], horizon_s: float) -> Advice:
    """Return the recommendation for a recorded run and its simulated alternatives."""
    possible = [outcome for outcome in outcomes if not outcome.problem]
    if not possible:
        return Advice("No strategy can be recommended: none can run with these clients.")
    num_clients = len(fitted.names)
    num_served = max(num_clients - len(outcome.not_served) for outcome in possible)
    if not num_served:
        return Advice(
            "No strategy can be recommended: none aggregates updates of any client in at least "
            f"{100 * MIN_SERVED:g} % of the simulations of {horizon_s:g} s; simulate more time."
        )
    fair = [outcome for outcome in possible if num_clients - len(outcome.not_served) == num_served]
    best = max(fair, key=lambda outcome: outcome.spread("updates_per_h").mean)
    label, rate = best.candidate.label, best.spread("updates_per_h")
    baseline = _baseline(fitted, reality, possible)
    clients = f"{'all ' if num_served == num_clients else ''}{num_served} clients"
    but = _faster_but_unfair(fitted, possible, fair, rate.mean)
    if label == baseline.label:
        why = f"it has the most updates per hour of the strategies that aggregate updates of {clients}"
        return Advice(f"Keep {label}: {why}{but}.", best, compared_with=label)
    if not np.all(baseline.rates > 0):  # a ratio would divide by zero
        why = f"{rate.mean:.0f} per hour (95 % interval {rate.low:.0f}–{rate.high:.0f})"
        return Advice(f"Use {label}: it aggregates updates of {clients}, {why}{but}.", best)
    gain = Spread.of(best.values["updates_per_h"] / baseline.rates)
    times = f"{gain.mean:.2f} times as many updates per hour as {baseline.label}"
    interval = f"95 % interval {gain.low:.2f}–{gain.high:.2f}"
    if not any(np.count_nonzero(~client.is_lost) > 1 for client in fitted.observed):
        interval = "no interval, because no client replied twice"
    if gain.low >= MIN_GAIN or num_clients - baseline.num_not_served < num_served:
        sentence = f"Use {label}: it has {times} ({interval}), and aggregates updates of {clients}"
    elif gain.high < 1:
        sentence = f"Keep {baseline.label}: {label} has only {times} ({interval})"
    else:
        why = "is too small" if gain.high < MIN_GAIN and gain.low > 1 / MIN_GAIN else "is not certain"
        sentence = f"Keep {baseline.label}: {label} has {times}, but the difference {why} ({interval})"
    return Advice(f"{sentence}{but}.", best, gain, baseline.label)


def choose_deadline_s(
    fitted: FittedFleet,
    *,
    horizon_s: float | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> float:
    """Return the deadline with which LESSON has the most updates per hour in NUM_TRIES replicates.

    Of the deadlines within 1 % of the most updates (TIE), this is the longest, which aggregates more clients at once.
    """
    horizon_s = horizon_s or horizon_of(fitted)
    rates: dict[float, float] = {}
    for deadline_s in deadlines_of(fitted):
        progress(f"Trying a deadline of {deadline_s:g} s")
        candidate = Candidate("lesson", deadline_s)
        (outcome,) = simulate_candidates(fitted, [candidate], num_replicates=NUM_TRIES, horizon_s=horizon_s, seed=seed)
        rates[deadline_s] = 0.0 if outcome.problem else outcome.spread("updates_per_h").mean
    return max(deadline_s for deadline_s, rate in rates.items() if rate >= TIE * max(rates.values()))


def deadlines_of(fitted: FittedFleet) -> list[float]:
    """Return candidate deadlines, which about a tenth, a quarter, … of the clients meet with a margin, rounded up."""
    latency_s = fitted.fleet().latency_s
    known = latency_s[np.isfinite(latency_s)]
    return sorted({round_up(MARGIN * float(one)) for one in np.quantile(known, QUANTILES, method="inverted_cdf")})


def _baseline(fitted: FittedFleet, reality: Reality, possible: Sequence[Outcome]) -> _Baseline:
    """Return the baseline of the recommendation; its rates are 0 if there is none.

    This is the simulation of the recorded strategy if it is one of the candidates, or else the recorded run, or else
    FedAvg, if the recording does not show which updates were aggregated.
    """
    recorded = [outcome for outcome in possible if is_recorded(outcome.candidate, fitted.recording)]
    if not recorded and np.isfinite(reality.warm_per_h):
        label = f"the recorded run ({reality.strategy})"
        return _Baseline(label, np.array(reality.warm_per_h), len(reality.not_served))
    for outcome in recorded or [one for one in possible if one.candidate.strategy == "fedavg"]:
        return _Baseline(outcome.candidate.label, outcome.values["updates_per_h"], len(outcome.not_served))
    return _Baseline("", np.zeros(1), 0)


def _faster_but_unfair(fitted: FittedFleet, possible: Sequence[Outcome], fair: Sequence[Outcome], rate: float) -> str:
    """Return a clause about a strategy with more updates that is not recommended because it leaves out clients."""
    for outcome in possible:
        if outcome not in fair and outcome.spread("updates_per_h").mean > rate:
            clients = listed([fitted.names[client] for client in outcome.not_served.tolist()], most=3)
            rarely = f"in less than {100 * MIN_SERVED:g} % of the simulations"
            return f"; {outcome.candidate.label} would have more updates, but aggregates those of {clients} {rarely}"
    return ""
