"""Compares a recorded federation with simulations of other strategies and deadlines on its clients."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lesson.core.arrays import IntArray
from lesson.core.errors import ArgumentError
from lesson.core.validation import CountFromZero, Positive, PositiveOrInf, check_value
from lesson.flight.advice import Advice, choose_deadline_s, recommend
from lesson.flight.fit import FittedFleet, fit
from lesson.flight.outcomes import (
    NUM_REPLICATES,
    Candidate,
    NumReplicates,
    Outcome,
    Reality,
    Spread,
    horizon_of,
    reality_of,
    simulate_candidates,
)
from lesson.flight.recording import read_recording
from lesson.strategies import options_of

if TYPE_CHECKING:  # it takes a while to import
    import pandas as pd

NO_TIMES = (
    "the compute times of clients are unknown; for strategies that need them, let clients report their times with "
    "lesson.flower.report_times"
)


@dataclass(frozen=True, eq=False)
class Replay:
    """A recorded run, its simulated alternatives, and the recommendation `advice`."""

    fitted: FittedFleet
    reality: Reality
    outcomes: tuple[Outcome, ...]
    horizon_s: float
    seed: int
    advice: Advice

    @property
    def notes(self) -> list[str]:
        """Assumptions, omissions and missing information, one line each."""
        found = [(outcome.candidate.label, outcome.problem or outcome.note) for outcome in self.outcomes]
        notes = [*(f"{label}: {note}" for label, note in found if note), *self.fitted.notes]
        if not self.fitted.split_is_known and any(outcome.problem for outcome in self.outcomes):
            notes.append(NO_TIMES)
        return notes

    @property
    def rows(self) -> list[tuple[str, dict[str, Spread], IntArray]]:
        """The recorded run, without intervals, and each strategy that can run: label, measures, clients not served."""
        recorded = {name: Spread(value, math.nan, math.nan) for name, value in self.reality.values.items()}
        simulated = [(one.candidate.label, one.spreads, one.not_served) for one in self.outcomes if not one.problem]
        return [(f"recorded: {self.reality.strategy}", recorded, self.reality.not_served), *simulated]

    def table(self) -> "pd.DataFrame":
        """Return a row per strategy with the mean and the interval of each measure; the first row is the recording.

        The ends of the interval, `low` and `high`, are NaN for the recording. `not_served` counts the clients whose
        updates are aggregated in less than 95 % of the simulations. Strategies that cannot run have no row.
        """
        import pandas as pd

        rows = {
            label: {f"{name}_{end}": value for name, spread in spreads.items() for end, value in vars(spread).items()}
            | {"not_served": len(not_served)}
            for label, spreads, not_served in self.rows
        }
        return pd.DataFrame.from_dict(rows, orient="index")


def replay(
    recording: Path | str,
    strategies: Sequence[str] = ("lesson", "fedavg", "fedcs", "fedbuff"),
    deadline_s: float | Literal["auto"] = "auto",
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    num_replicates: int = NUM_REPLICATES,
    time_budget_s: float | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Replay:
    """Simulate what other strategies would have done with the clients of a recorded federation, without training.

    Args:
        recording: Recording of a federation, `flight.jsonl`.
        strategies: Names of strategies, or `module:Class`.
        deadline_s: Deadline in seconds of the strategies that have one; "auto" tries several and chooses the one with
            which LESSON has the most updates per hour.
        options: Options of individual strategies, such as `{"fedbuff": {"concurrency": 5}}`.
        num_replicates: Number of simulations per strategy, from 2 to 10,000, for intervals.
        time_budget_s: Length of a simulation in seconds; by default, that of the recording, but at least 10 and at most
            200 times what slow clients take.
        seed: Random seed.
        progress: Called with a line of text before each step.

    Returns:
        The recorded run and the simulated outcomes; `table()` returns them as a DataFrame, and `advice` is the
        recommendation.

    Raises:
        InputError: An argument or the recording is invalid.
    """
    names = list(strategies)
    if isinstance(strategies, str) or not names or len(set(names)) != len(names):
        raise ArgumentError("strategies", f"must be one or more different names, got {strategies!r}")
    check_value("deadline_s", deadline_s, PositiveOrInf | Literal["auto"])
    check_value("num_replicates", num_replicates, NumReplicates)
    check_value("time_budget_s", time_budget_s, Positive | None)
    check_value("seed", seed, CountFromZero)
    options_by_name = options_of(names, {}, options)
    fitted = fit(read_recording(recording))
    horizon_s = time_budget_s or horizon_of(fitted)
    if deadline_s == "auto":
        deadline_s = choose_deadline_s(fitted, horizon_s=horizon_s, seed=seed, progress=progress)
    candidates = [Candidate(name, float(deadline_s), options_by_name[name]) for name in names]
    return replay_fitted(
        fitted, candidates, num_replicates=num_replicates, horizon_s=horizon_s, seed=seed, progress=progress
    )


def replay_fitted(
    fitted: FittedFleet,
    candidates: Sequence[Candidate],
    *,
    num_replicates: int = NUM_REPLICATES,
    horizon_s: float | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Replay:
    """Simulate candidates on a fitted fleet, and recommend one of them."""
    horizon_s = horizon_s or horizon_of(fitted)
    outcomes = simulate_candidates(
        fitted,
        candidates,
        num_replicates=num_replicates,
        horizon_s=horizon_s,
        seed=seed,
        progress=lambda done: progress(f"Simulating {len(candidates)} strategies: {done}/{num_replicates}"),
    )
    reality = reality_of(fitted)
    return Replay(fitted, reality, outcomes, horizon_s, seed, recommend(fitted, reality, outcomes, horizon_s))
