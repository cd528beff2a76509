"""Which strategy and which deadline suit the clients of a recording, with the reason in a sentence.

Of the strategies that aggregate updates of every client that any of them does, the one with the most updates per hour
is recommended, each update weighted by 1 / √(1 + staleness). This compares schedules, not models: only a simulation
with training shows the accuracy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lesson.core.arrays import FloatArray
from lesson.flight.fit import FittedFleet
from lesson.flight.replay import Candidate, Outcome, Replay, Spread, replay
from lesson.flight.timeline import is_synchronous
from lesson.planning.plan import round_up

QUANTILES = (0.1, 0.25, 0.5, 0.75, 1.0)
MARGIN = 1.1
"""A deadline to try is this many times the latency that a share of the clients, one of QUANTILES, do not exceed."""
NUM_TRIES = 20
"""Number of replicates with which deadlines are compared."""
MIN_GAIN = 1.01
"""A strategy is recommended instead of the recorded one if the low end of its gain is at least this."""


@dataclass(frozen=True, eq=False)
class Advice:
    """A recommendation.

    Attributes:
        sentence: The recommendation and its reason.
        outcome: The recommended outcome; None if there is nothing to recommend.
        gain: Updates per hour, weighted by staleness, relative to `compared_with`; None if nothing is compared.
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
    served = [len(result.fitted.names) - len(outcome.never_served) for outcome in possible]
    if not max(served):
        return Advice(
            f"No strategy can be recommended: none of them aggregates an update in {result.horizon_s:g} s; simulate a "
            "longer time."
        )
    fair = [outcome for outcome, number in zip(possible, served, strict=True) if number == max(served)]
    best = max(fair, key=lambda outcome: outcome.spread("fresh_per_h").mean)
    baseline, rates = _baseline(result, possible)
    who = f"all {len(result.fitted.names)}" if max(served) == len(result.fitted.names) else f"{max(served)}"
    passed_over = _faster_but_unfair(result, possible, fair, best)
    is_recorded = best.candidate.strategy == result.fitted.recording.header.strategy.lower()
    if best.candidate.label == baseline or (is_recorded and _same_deadline(result, best)):
        return Advice(
            f"Keep {baseline}: of the strategies that aggregate updates of {who} clients, it has the most updates per "
            f"hour, weighted by staleness{passed_over}.",
            best,
            None,
            baseline,
        )
    if rates is None or not np.all(np.asarray(rates) > 0):  # no ratio to nothing
        rate = best.spread("fresh_per_h")
        return Advice(
            f"Use {best.candidate.label}: it aggregates updates of {who} clients, {rate.mean:.0f} per hour, "
            f"weighted by staleness (95 % interval {rate.low:.0f}–{rate.high:.0f}){passed_over}.",
            best,
        )
    gain = Spread.of(best.values["fresh_per_h"] / rates)
    times = f"{gain.mean:.2f} times as many updates per hour as {baseline}"
    interval = f"95 % interval {gain.low:.2f}–{gain.high:.2f}"
    if not any(np.count_nonzero(~one.is_lost) > 1 for one in result.fitted.observed):
        interval = "no interval, because no client replied twice"
    if gain.low < MIN_GAIN:
        why = "is too small" if gain.high < MIN_GAIN else "is not certain"
        return Advice(
            f"Keep {baseline}: {best.candidate.label} has {times}, weighted by staleness, but the difference "
            f"{why} ({interval}){passed_over}.",
            best,
            gain,
            baseline,
        )
    return Advice(
        f"Use {best.candidate.label}: it has {times}, weighted by staleness ({interval}), and aggregates updates of "
        f"{who} clients{passed_over}.",
        best,
        gain,
        baseline,
    )


def choose_deadline_s(
    fitted: FittedFleet,
    *,
    horizon_s: float | None = None,
    seed: int = 0,
    tell: Callable[[float], None] = lambda _: None,
) -> float:
    """Return the deadline with which LESSON has the most updates per hour, weighted by staleness, in NUM_TRIES runs."""
    deadlines = deadlines_of(fitted)
    best_s, best_rate = deadlines[0], -np.inf
    for deadline_s in deadlines:
        tell(deadline_s)
        tried = [Candidate("lesson", deadline_s)]
        outcome = replay(fitted, tried, num_replicates=NUM_TRIES, horizon_s=horizon_s, seed=seed).outcomes[0]
        rate = -np.inf if outcome.problem else outcome.spread("fresh_per_h").mean
        if rate > best_rate:
            best_s, best_rate = deadline_s, rate
    return best_s


def deadlines_of(fitted: FittedFleet) -> list[float]:
    """Return deadlines to try: those that about a tenth, a quarter, … of the clients meet with a margin, rounded up."""
    latency_s = fitted.fleet().latency_s
    known = latency_s[np.isfinite(latency_s)]
    return sorted({round_up(MARGIN * float(one)) for one in np.quantile(known, QUANTILES, method="inverted_cdf")})


def _baseline(result: Replay, possible: Sequence[Outcome]) -> tuple[str, FloatArray | float | None]:
    """Return what to compare with, and its rate in each replicate.

    It is the recorded strategy: simulated, if it is one of the candidates, otherwise as it was recorded; or FedAvg if
    the recording does not show its updates. Synchronous rounds without a name have the schedule of FedAvg.
    """
    header = result.fitted.recording.header
    recorded = header.strategy or ("fedavg" if is_synchronous(result.fitted.recording) else "")
    for outcome in possible:
        if outcome.candidate.strategy == recorded and _same_deadline(result, outcome):
            return outcome.candidate.label, outcome.values["fresh_per_h"]
    if np.isfinite(rate := result.reality.values["fresh_per_h"]):
        return f"the recorded run ({result.reality.strategy})", rate
    for outcome in possible:
        if outcome.candidate.strategy == "fedavg":
            return outcome.candidate.label, outcome.values["fresh_per_h"]
    return "", None


def _same_deadline(result: Replay, outcome: Outcome) -> bool:
    """Return whether the outcome has the deadline of the recorded strategy, as far as both have one."""
    one, recorded_s = outcome.candidate, result.fitted.recording.header.deadline_s
    return not one.has_deadline or recorded_s is None or one.deadline_s == recorded_s


def _faster_but_unfair(result: Replay, possible: Sequence[Outcome], fair: Sequence[Outcome], best: Outcome) -> str:
    """Return which strategy with more updates is not recommended because it aggregates none of some clients."""
    rate = best.spread("fresh_per_h").mean
    faster = [one for one in possible if one not in fair and one.spread("fresh_per_h").mean > rate]
    if not faster:
        return ""
    names = [result.fitted.names[client] for client in faster[0].never_served.tolist()]
    whom = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"; {faster[0].candidate.label} would have more updates, but none from {whom}"
