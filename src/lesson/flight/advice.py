"""Which strategy and which deadline suit the clients of a recording, with the reason in a sentence.

Of the strategies that serve the most clients (see MIN_SERVED), the one with the most updates per hour is recommended;
staleness does not matter. This compares schedules, not models: only a simulation with training shows the accuracy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lesson.core.arrays import FloatArray
from lesson.flight.fit import FittedFleet
from lesson.flight.replay import MIN_SERVED, Candidate, Outcome, Replay, Spread, is_recorded, replay
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


def recommend(result: Replay) -> Advice:
    """Return the recommendation for a replay."""
    possible = [outcome for outcome in result.outcomes if not outcome.problem]
    if not possible:
        return Advice("No strategy can be recommended: none of them can run with these clients.")
    num_clients = len(result.fitted.names)
    most = max(num_clients - len(outcome.not_served) for outcome in possible)
    if not most:
        return Advice(
            "No strategy can be recommended: none of them aggregates updates of any client in at least "
            f"{100 * MIN_SERVED:g} % of the simulations of {result.horizon_s:g} s; simulate a longer time."
        )
    fair = [outcome for outcome in possible if num_clients - len(outcome.not_served) == most]
    best = max(fair, key=lambda outcome: outcome.spread("updates_per_h").mean)
    baseline = _baseline(result, possible)
    who = f"all {num_clients}" if most == num_clients else f"{most}"
    passed_over = _faster_but_unfair(result, possible, fair, best)
    if best.candidate.label == baseline.label:
        return Advice(
            f"Keep {baseline.label}: of the strategies that aggregate updates of {who} clients, it has the most "
            f"updates per hour{passed_over}.",
            best,
            None,
            baseline.label,
        )
    if not np.all(baseline.rates > 0):  # no ratio to nothing
        rate = best.spread("updates_per_h")
        return Advice(
            f"Use {best.candidate.label}: it aggregates updates of {who} clients, {rate.mean:.0f} per hour "
            f"(95 % interval {rate.low:.0f}–{rate.high:.0f}){passed_over}.",
            best,
        )
    gain = Spread.of(best.values["updates_per_h"] / baseline.rates)
    times = f"{gain.mean:.2f} times as many updates per hour as {baseline.label}"
    interval = f"95 % interval {gain.low:.2f}–{gain.high:.2f}"
    if not any(np.count_nonzero(~one.is_lost) > 1 for one in result.fitted.observed):
        interval = "no interval, because no client replied twice"
    if gain.low >= MIN_GAIN or num_clients - baseline.num_not_served < most:
        sentence = (
            f"Use {best.candidate.label}: it has {times} ({interval}), and aggregates updates of {who} clients"
            f"{passed_over}."
        )
    elif gain.high < 1:
        sentence = f"Keep {baseline.label}: {best.candidate.label} has only {times} ({interval}){passed_over}."
    else:
        why = "is too small" if gain.high < MIN_GAIN and gain.low > 1 / MIN_GAIN else "is not certain"
        sentence = (
            f"Keep {baseline.label}: {best.candidate.label} has {times}, but the difference {why} "
            f"({interval}){passed_over}."
        )
    return Advice(sentence, best, gain, baseline.label)


def choose_deadline_s(
    fitted: FittedFleet,
    *,
    horizon_s: float | None = None,
    seed: int = 0,
    tell: Callable[[float], None] = lambda _: None,
) -> float:
    """Return the deadline with which LESSON has the most updates per hour in NUM_TRIES replicates.

    Of deadlines within 1 % of the most updates (TIE), it is the longest: with it, an aggregation has more clients.
    """
    rates: dict[float, float] = {}
    for deadline_s in deadlines_of(fitted):
        tell(deadline_s)
        tried = [Candidate("lesson", deadline_s)]
        outcome = replay(fitted, tried, num_replicates=NUM_TRIES, horizon_s=horizon_s, seed=seed).outcomes[0]
        rates[deadline_s] = 0.0 if outcome.problem else outcome.spread("updates_per_h").mean
    return max(deadline_s for deadline_s, rate in rates.items() if rate >= TIE * max(rates.values()))


def deadlines_of(fitted: FittedFleet) -> list[float]:
    """Return deadlines to try: those that about a tenth, a quarter, … of the clients meet with a margin, rounded up."""
    latency_s = fitted.fleet().latency_s
    known = latency_s[np.isfinite(latency_s)]
    return sorted({round_up(MARGIN * float(one)) for one in np.quantile(known, QUANTILES, method="inverted_cdf")})


@dataclass(frozen=True, eq=False)
class _Baseline:
    """What to compare with: its name, its rate in each replicate, and the number of clients that it does not serve."""

    label: str
    rates: FloatArray
    num_not_served: int

    @classmethod
    def of(cls, outcome: Outcome) -> "_Baseline":
        return cls(outcome.candidate.label, outcome.values["updates_per_h"], len(outcome.not_served))


def _baseline(result: Replay, possible: Sequence[Outcome]) -> _Baseline:
    """Return what to compare with; its rates are 0 if there is nothing.

    It is the recorded strategy: simulated, if it is one of the candidates, otherwise as it was recorded; or FedAvg if
    the recording does not show its updates.
    """
    for outcome in possible:
        if is_recorded(outcome.candidate, result.fitted.recording):
            return _Baseline.of(outcome)
    reality = result.reality
    if np.isfinite(reality.warm_per_h):
        label = f"the recorded run ({reality.strategy})"
        return _Baseline(label, np.array(reality.warm_per_h), len(reality.not_served))
    for outcome in possible:
        if outcome.candidate.strategy == "fedavg":
            return _Baseline.of(outcome)
    return _Baseline("", np.zeros(1), 0)


def _faster_but_unfair(result: Replay, possible: Sequence[Outcome], fair: Sequence[Outcome], best: Outcome) -> str:
    """Return which strategy with more updates is not recommended because it does not serve some clients."""
    rate = best.spread("updates_per_h").mean
    faster = [one for one in possible if one not in fair and one.spread("updates_per_h").mean > rate]
    if not faster:
        return ""
    names = [result.fitted.names[client] for client in faster[0].not_served.tolist()]
    whom = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    rarely = f"in less than {100 * MIN_SERVED:g} % of the simulations"
    return f"; {faster[0].candidate.label} would have more updates, but aggregates those of {whom} {rarely}"
