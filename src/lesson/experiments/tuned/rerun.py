"""Verifies archived results: reruns the final runs of an entry and compares every stored number.

With the same versions on the same hardware, the same seed gives the same bits, so every number must be identical.
Elsewhere, floating-point rounding differs, and after thousands of steps a model may differ from the archived one as
much as that of an independent run. The simulated clock does not depend on the training device: rounds, uploads and
bytes must still be identical, and times and energies may differ in the last stored digit. The schedule is not judged if
it depends on training: if the strategy reads signals from it, or a guard rejects updates by their norm.

For the final values of the metric, let S be their standard deviation over the archived seeds. The difference of two
independent runs has the standard deviation √2·S; that of two runs with the same clients, data and initial model should
be smaller. The mean difference over the m repeated runs of a β must therefore be at most t·√2·S/√m. This is checked
once per β: t is the 1 − 0.025/b quantile of Student's distribution for b values of β, so about 5 % of commands would
fail if all repeated runs were independent of the archived ones. One run alone is only judged if it is the only one
(m = 1); a wrong run among several fails the check if it is off by more than √m·t·√2·S.
"""

import hashlib
import json
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lesson.core.errors import InputError, unknown
from lesson.experiments.archive import stored_values
from lesson.experiments.design import Named
from lesson.experiments.folder import StudyFolder
from lesson.experiments.measures import MIN_SEEDS, value_by
from lesson.experiments.missing import check_runs
from lesson.experiments.naming import in_words
from lesson.experiments.run import Archived, Run, summary_of
from lesson.experiments.study import Study
from lesson.experiments.tuned.cases import Case
from lesson.experiments.tuned.collapse import has_collapsed
from lesson.experiments.tuned.design import TunedComparison
from lesson.settings.settings import Settings
from lesson.strategies import make_strategy

COUNTS = ("round", "rounds", "uploads", "bytes_up", "bytes_down", "retiered", "lost")
AMOUNTS = ("time_s", "energy_j")
SCHEDULE = ("round", "time_s", "uploads", "energy_j")
"""Columns of a curve that come from the simulated clock."""
NOT_COMPARED = ("device", "notes", "misses")
"""Fields of a summary that are not compared: the device is part of the rule, notes may quote a model's values, and
early archives count late updates even for strategies without a deadline."""
LAST_PLACE, RELATIVE = 1e-3, 1e-9
"""By how much times and energies may differ on other hardware: the last stored digit, or this share of a large sum."""
FALSE_ALARMS = 0.05
"""Share of commands whose final values fail if the repeated runs are independent of the archived ones."""


@dataclass(frozen=True)
class Rerun:
    """Executes archived final runs of an entry again; a design, see `Design`."""

    kind: ClassVar[str] = "rerun"
    archived: ClassVar[bool] = True
    toml: ClassVar[str] = ""

    cases: Sequence[Case]
    before: Mapping[str, Run]
    """The archived runs of the whole study by name."""
    named: Named

    @classmethod
    def load(
        cls, design: TunedComparison, folder: Path | str, row: str, beta: float | None = None, seed: int | None = None
    ) -> "Rerun":
        """Return the final runs of an entry, at one β or all, with one seed or all.

        Raise InputError if the folder lacks one of them, or has them with other settings.
        """
        there = StudyFolder(folder)
        if there.read() is None:
            raise InputError(f"{there.path} holds no study to verify; execute the sweep first, without --verify")
        there.check(design)
        done, rules = there.runs(), design.rules
        if row not in design.by_name:
            raise unknown("entry", row, design.by_name)
        if beta is not None and beta not in rules.betas:
            raise InputError(f"--beta must be one of {_listed(rules.betas)}, got {in_words(beta)}")
        if seed is not None and seed not in rules.seeds:
            raise InputError(f"--seed must be one of {_listed(rules.seeds)}, got {seed}")
        cases = [case for case in design.cases if case.entry.name == row and beta in (None, case.beta)]
        if missing := sum(case.num_missing(done) for case in cases):
            runs = "1 run is" if missing == 1 else f"{missing} runs are"
            remedy = "execute the sweep first, or verify with the folder's own study.toml"
            raise InputError(f"'{row}' is incomplete in {there.path}: {runs} missing; {remedy}")
        finals = {name: one for case in cases for name, one in (case.finals(done) or {}).items()}
        check_runs(finals, done, there.path, resume=True)
        return cls(cases, done, {name: one for name, one in finals.items() if seed in (None, one.run.seed)})

    def runs(self, done: Mapping[str, Run]) -> Named:  # noqa: ARG002
        """Return the runs to execute, see `Design`."""
        return dict(self.named)

    def later(self, done: Mapping[str, Run]) -> Named:  # noqa: ARG002
        """Return no runs: nothing is tuned."""
        return {}

    def study(self, done: Mapping[str, Run], failures: Mapping[str, str]) -> Study:
        """Return the repeated runs that are done, see `Design`."""
        return Study([done[name] for name in self.named if name in done], ("strategy",), failures)

    def compare(self, repeated: Iterable[Run]) -> "list[Comparison]":
        """Compare repeated runs with the archived ones: one result per run, and one per β with several runs.

        Elsewhere than on the same machine, the final values of several runs are judged by their mean only.
        """
        after = {run.name: run for run in repeated}
        found = []
        for case in self.cases:
            spread = Spread.of(case, self.before, len(self.cases))
            names = [name for name in case.finals(self.before) or () if name in after]
            pairs = [(self.before[name], _as_stored(self.before[name], after[name])) for name in names]
            found += [_compared(was, now, spread, alone=len(pairs) == 1) for was, now in pairs]
            if len(pairs) > 1 and not all(is_same_machine(*pair) for pair in pairs):
                found.append(spread.of_means(f"{case.entry.name}, β = {case.beta:g}", pairs))
        return found


@dataclass(frozen=True)
class Comparison:
    """What differs between an archived run and its repetition, or between the means of several."""

    name: str
    told: str
    """One line for people."""
    problem: str = ""
    """What differs by more than the rule allows; empty if nothing does."""
    identical: bool = False


@dataclass(frozen=True)
class Spread:
    """Final values of an entry at one β over the archived seeds that have not collapsed."""

    values: Sequence[float]
    time_s: float
    num_checks: int = 1
    """How many values of β the command checks; they share `FALSE_ALARMS`."""

    @classmethod
    def of(cls, case: Case, done: Mapping[str, Run], num_checks: int = 1) -> "Spread":
        time_s = case.rules.final_s
        kept = [run for run in case.made(done) if not has_collapsed(run, time_s)]
        return cls([value_by(run, time_s) for run in kept], time_s, num_checks)

    def allowed(self, num_runs: int) -> float:
        """Return by how much the mean over some runs may differ: t·√2·S/√num_runs; NaN for fewer than three seeds."""
        from scipy.special import stdtrit  # not at the top: scipy takes a while to import

        count = len(self.values)
        if count < MIN_SEEDS:
            return math.nan
        quantile = stdtrit(count - 1, 1 - FALSE_ALARMS / 2 / self.num_checks)
        return float(quantile * np.std(self.values, ddof=1) * math.sqrt(2 / num_runs))

    def of_means(self, name: str, pairs: Sequence[tuple[Run, Run]]) -> Comparison:
        """Compare the mean final values over the runs that have collapsed neither time."""
        kept = [pair for pair in pairs if not any(has_collapsed(run, self.time_s) for run in pair)]
        if not kept:
            return Comparison(name, "all runs have collapsed")
        off = abs(math.fsum(value_by(now, self.time_s) - value_by(was, self.time_s) for was, now in kept)) / len(kept)
        told, problem = self._judged(f"the mean final {kept[0][0].metric.name} differs by", off, len(kept))
        return Comparison(name, told, problem)

    def of_run(self, was: Run, now: Run, alone: bool) -> tuple[str, str]:
        """Return in words by how much the final values differ, and the problem if that is too much.

        Unless the run is alone, only a collapse is a problem: `of_means` judges the values.
        """
        lost = [has_collapsed(run, self.time_s) for run in (was, now)]
        if any(lost):
            told = "collapsed" if all(lost) else "collapsed in only one of the two runs"
            return told, "" if all(lost) else told
        off = abs(value_by(now, self.time_s) - value_by(was, self.time_s))
        what = f"the final {was.metric.name} differs by"
        return self._judged(what, off, 1) if alone else (f"{what} {off:.4g}", "")

    def _judged(self, what: str, off: float, num_runs: int) -> tuple[str, str]:
        allowed = self.allowed(num_runs)
        if math.isnan(allowed):
            return f"{what} {off:.4g} (not judged with fewer than {MIN_SEEDS} seeds)", ""
        told = f"{what} {off:.4g} ({allowed:.4g} allowed)"
        return told, told if off > allowed else ""


def is_same_machine(was: Run, now: Run) -> bool:
    """Return whether two runs have the same versions, hardware, device and precision, so that bits must agree."""
    return _machine(was) == _machine(now)


def rule_of(was: Run, now: Run) -> str:
    """Return in words the rule that applies to a run and its repetition."""
    if is_same_machine(was, now):
        return "same hardware and versions: every number must be identical"
    there, here = _machine(was), _machine(now)
    name = next(name for name in ("hardware", "torch", *there, *here) if there.get(name) != here.get(name))
    clock = "is not judged, as it depends on the training" if follows_training(was.settings) else "must be identical"
    return (
        f"{name} is {there.get(name, 'unknown')} in the archive and {here.get(name, 'unknown')} here: the schedule "
        f"{clock}, and the mean final {was.metric.name} at each β may differ as much as that of independent runs, "
        f"which would fail in about {100 * FALSE_ALARMS:g} % of commands"
    )


def follows_training(settings: Settings) -> bool:
    """Return whether the schedule depends on the training: on signals, or on the norms of updates."""
    chosen = settings.strategy
    return bool(make_strategy(chosen.name, chosen.deadline_s, chosen.options).needs) or settings.guards.limits_norms


def digest(runs: Sequence[Run], columns: Sequence[str] | None = None) -> str:
    """Return a SHA-256 digest of the stored curves of runs, or of some columns; it does not depend on their order."""
    curves = [stored_values(run)["curve"] for run in sorted(runs, key=lambda run: run.name)]
    kept = [{name: one[name] for name in columns or one if name in one} for one in curves]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _as_stored(was: Run, now: Run) -> Run:
    """Return a repeated run as the archive stores it.

    The first archives lack the evaluation of the final model, and their summaries end at the last evaluation.
    """
    if "bytes_up" in was.summary or was.diverged or now.diverged or len(now.curve) != len(was.curve) + 1:
        return now
    curve = now.curve[:-1]
    summary = now.summary | summary_of(now.settings, curve, "", now.metric)
    return replace(now, summary=summary, archived=Archived(now.name, now.versions, curve, now.clients))


def _compared(was: Run, now: Run, spread: Spread, alone: bool) -> Comparison:
    there, here = stored_values(was), stored_values(now)
    different, name = next(_different(there, here), ""), was.metric.name
    if not different:
        return Comparison(was.name, f"identical, {len(was.curve)} evaluations", identical=True)
    if bool(was.diverged) != bool(now.diverged):
        problem = f"diverged only {'in the archive' if was.diverged else 'here'}"
        return Comparison(was.name, problem, problem)
    if is_same_machine(was, now):
        return Comparison(was.name, different, f"{different} although hardware and versions are the same")
    schedule = "schedule not judged"
    if not follows_training(was.settings):
        if clock := next(_different(there, here, rounded=True), ""):
            return Comparison(was.name, f"the schedule differs: {clock}", clock)
        schedule = "schedule identical"
    largest = _largest(there["curve"].get(name, []), here["curve"].get(name, []))
    final, problem = spread.of_run(was, now, alone)
    return Comparison(was.name, f"{schedule}, {name} differs by at most {largest:.4g}, {final}", problem)


def _different(there: Mapping[str, Any], here: Mapping[str, Any], rounded: bool = False) -> Iterator[str]:
    """Yield in words which stored numbers differ, of those that the archive has.

    If `rounded`, only the schedule is compared, and times and energies may differ in the last stored digit.
    """
    for table in ("curve", "summary", "clients"):
        for name, was in there[table].items():
            now = here[table].get(name)
            judged = table != "clients" and name in (*COUNTS, *AMOUNTS) if rounded else name not in NOT_COMPARED
            agree = _is_close if rounded and name in AMOUNTS else operator.eq
            if not judged:
                continue
            if not isinstance(was, list) or not isinstance(now, list):
                if not agree(was, now):
                    yield f"{name} is {was} in the archive and {now} here"
            elif len(was) != len(now):
                yield f"{name} has {len(was)} values in the archive and {len(now)} here"
            elif (place := next((at for at, one in enumerate(was) if not agree(one, now[at])), None)) is not None:
                yield f"{name} at evaluation {place + 1} is {was[place]} in the archive and {now[place]} here"


def _is_close(was: float | None, now: float | None) -> bool:
    """Return whether two times or energies are equal up to the last stored digit."""
    if was is None or now is None:
        return was is now
    return abs(was - now) <= max(1.01 * LAST_PLACE, RELATIVE * abs(was))


def _largest(was: Sequence[float | None], now: Sequence[float | None]) -> float:
    """Return the largest difference of two curves, as far as both go."""
    pairs = zip(was, now, strict=False)
    return max((abs(one - other) for one, other in pairs if one is not None and other is not None), default=0.0)


def _machine(run: Run) -> dict[str, str]:
    """Return what the bits of a run depend on besides its settings."""
    limits = run.settings.run
    return {**run.versions, "device": str(run.summary.get("device", limits.device)), "precision": limits.precision}


def _listed(values: Iterable[float]) -> str:
    return ", ".join(map(in_words, values))
