"""An entry at one β: its tuning runs, the point they select, and its final runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lesson.experiments.design import Named
from lesson.experiments.measures import value_by
from lesson.experiments.naming import run_name
from lesson.experiments.run import Run
from lesson.experiments.tuned.collapse import has_collapsed
from lesson.experiments.tuned.entries import Entry, Point
from lesson.experiments.tuned.rules import Rules
from lesson.settings.settings import Settings

Done = Mapping[str, Run]
"""The runs of a folder that are done, by name."""


@dataclass(frozen=True)
class Score:
    """The tuning result of one point."""

    value: float
    """Mean over the runs that did not collapse, or over all if every run did; a diverged run counts as guessing."""
    seeds: int
    collapsed: int
    diverged: int

    @classmethod
    def of(cls, runs: Sequence[Run], rules: Rules) -> "Score":
        """Return the result of the tuning runs of a point."""
        values = [value_by(rules.checked(run), rules.tuning_s) for run in runs]
        lost = [has_collapsed(run, rules.tuning_s) for run in runs]
        kept = [value for value, collapsed in zip(values, lost, strict=True) if not collapsed] or values
        return cls(math.fsum(kept) / len(kept), len(runs), sum(lost), sum(bool(run.diverged) for run in runs))


@dataclass(frozen=True)
class Case:
    """An entry at one β."""

    entry: Entry
    beta: float
    rules: Rules
    _named: dict[tuple[int, int], tuple[str, Settings]] = field(default_factory=dict, repr=False, compare=False)
    """Name and settings of runs by the index of their point and their seed, kept because validation takes a while."""

    def tuning(self) -> Named:
        """Return the tuning runs by name, one per seed and point; none if the entry has a single point."""
        seeds, places = self.rules.tuning_seeds, range(len(self.entry.points))
        return dict(self._run(place, seed) for seed in seeds for place in places) if len(places) > 1 else {}

    def finals(self, done: Done) -> Named | None:
        """Return the final runs by name; None until all tuning runs are done."""
        place = self._place(done)
        return None if place is None else self.runs_at(place)

    def runs_at(self, place: int) -> Named:
        """Return the final runs with the settings at this index."""
        return dict(self._run(place, seed) for seed in self.rules.seeds)

    def chosen(self, done: Done) -> Point | None:
        """Return the point with the fewest collapsed runs, of several the one with the best result, then the first.

        None until all tuning runs are done.
        """
        place = self._place(done)
        return None if place is None else self.entry.points[place]

    def scores(self, done: Done) -> list[Score | None]:
        """Return the tuning result of each point, None if a run is missing; nothing if the entry has a single point."""
        points = range(len(self.entry.points)) if self.tuning() else range(0)
        return [self._score(place, done) for place in points]

    def made(self, done: Done) -> list[Run]:
        """Return the final runs that are done, ordered by seed."""
        return [done[name] for name in self.finals(done) or () if name in done]

    def num_missing(self, done: Done) -> int:
        """Return how many runs are missing."""
        untuned = sum(name not in done for name in self.tuning())
        return untuned + len(self.rules.seeds) - len(self.made(done))

    def _place(self, done: Done) -> int | None:
        scores = self.scores(done)
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            return None
        ranks = [(score.collapsed, self.rules.measured.cost(score.value)) for score in known]
        return ranks.index(min(ranks)) if ranks else 0

    def _score(self, place: int, done: Done) -> Score | None:
        runs = [done.get(self._run(place, seed)[0]) for seed in self.rules.tuning_seeds]
        made = [run for run in runs if run is not None]
        return Score.of(made, self.rules) if len(made) == len(runs) else None

    def _run(self, place: int, seed: int) -> tuple[str, Settings]:
        if (place, seed) not in self._named:
            settings = self.entry.settings(self.entry.points[place], self.beta, seed, self.rules)
            self._named[place, seed] = run_name(settings), settings
        return self._named[place, seed]
