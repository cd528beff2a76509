"""An entry at one β: its tuning runs, the point they select, and its final runs."""

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
        """Return the tuning runs by name, one per point; none if the entry has a single point."""
        points = self.entry.points
        return self._named(self._at(point, self.rules.tuning_seed) for point in points) if len(points) > 1 else {}

    def finals(self, results: Results) -> Runs | None:
        """Return the final runs by name; None until all tuning runs are done."""
        chosen = self.chosen(results)
        return None if chosen is None else self._named(self._at(chosen, seed) for seed in self.rules.seeds)

    def chosen(self, results: Results) -> Point | None:
        """Return the point with the highest accuracy, the first of several; None until all tuning runs are done."""
        scores = [score for score in self.scores(results) if score is not None]
        if len(scores) < len(self.tuning()):
            return None
        return self.entry.points[scores.index(max(scores)) if scores else 0]

    def scores(self, results: Results) -> list[float | None]:
        """Return the final accuracy of each tuning run: that of guessing if it diverged, None if it is missing."""
        made = [results.runs.get(name) for name in self.tuning()]
        return [None if run is None else accuracy_by(run, self.rules.tuning_s) for run in made]

    def made(self, results: Results) -> list[Result]:
        """Return the final runs that are done, ordered by seed."""
        return [results.runs[name] for name in self.finals(results) or () if name in results.runs]

    def num_missing(self, results: Results) -> int:
        """Return how many runs are missing."""
        untuned = self.scores(results).count(None)
        return untuned + len(self.rules.seeds) - len(self.made(results))

    def _at(self, point: Point, seed: int) -> Settings:
        return self.entry.settings(point, self.beta, seed, self.rules)

    @staticmethod
    def _named(runs: Iterable[Settings]) -> Runs:
        return {run_name(settings): settings for settings in runs}


def cases_of(entries: Iterable[Entry], rules: Rules) -> list[Case]:
    """Return every entry at every β."""
    return [Case(entry, beta, rules) for entry in entries for beta in rules.betas]


def is_complete(entry: Entry, rules: Rules, results: Results) -> bool:
    """Return whether all runs of an entry are done, at every β."""
    return not any(case.num_missing(results) for case in cases_of([entry], rules))
