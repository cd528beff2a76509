"""An entry at one β: the runs it is tuned by, which point won, and the runs that count."""

from collections.abc import Iterable
from dataclasses import dataclass

from lesson.experiments.contest.entries import Entry, Point
from lesson.experiments.contest.rules import Rules
from lesson.experiments.measures import accuracy_by
from lesson.experiments.naming import run_name
from lesson.experiments.results import Result, Results
from lesson.settings.settings import Settings

Runs = dict[str, Settings]


@dataclass(frozen=True)
class Case:
    """An entry at one β."""

    entry: Entry
    beta: float
    rules: Rules

    def tuning(self) -> Runs:
        """The runs it is tuned by, one per point; none if there is one point only."""
        points = self.entry.points
        return self._named(self._at(point, self.rules.tuning_seed) for point in points) if len(points) > 1 else {}

    def finals(self, results: Results) -> Runs | None:
        """The runs that count; None while it is not tuned."""
        chosen = self.chosen(results)
        return None if chosen is None else self._named(self._at(chosen, seed) for seed in self.rules.seeds)

    def chosen(self, results: Results) -> Point | None:
        """The point of the highest accuracy, the first of several; None while a run is missing."""
        scores = [score for score in self.scores(results) if score is not None]
        if len(scores) < len(self.tuning()):
            return None
        return self.entry.points[scores.index(max(scores)) if scores else 0]

    def scores(self, results: Results) -> list[float | None]:
        """Accuracy at the end of each tuning run, a guess if it diverged; None if it has not been made."""
        made = [results.runs.get(name) for name in self.tuning()]
        return [None if run is None else accuracy_by(run, self.rules.tuning_s) for run in made]

    def made(self, results: Results) -> list[Result]:
        """Those of the runs that count which have been made, in the order of seeds."""
        return [results.runs[name] for name in self.finals(results) or () if name in results.runs]

    def num_missing(self, results: Results) -> int:
        """How many runs it still needs."""
        untuned = self.scores(results).count(None)
        return untuned + len(self.rules.seeds) - len(self.made(results))

    def _at(self, point: Point, seed: int) -> Settings:
        return self.entry.settings(point, self.beta, seed, self.rules)

    @staticmethod
    def _named(runs: Iterable[Settings]) -> Runs:
        return {run_name(settings): settings for settings in runs}


def cases_of(entries: Iterable[Entry], rules: Rules) -> list[Case]:
    """Every entry at every β."""
    return [Case(entry, beta, rules) for entry in entries for beta in rules.betas]


def is_complete(entry: Entry, rules: Rules, results: Results) -> bool:
    """Whether all its runs have been made, at every β."""
    return not any(case.num_missing(results) for case in cases_of([entry], rules))
