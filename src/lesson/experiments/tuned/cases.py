"""An entry at one β: its tuning runs, the point they select, and its final runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lesson.experiments.design import Named
from lesson.experiments.measures import value_by
from lesson.experiments.naming import run_name
from lesson.experiments.run import Run
from lesson.experiments.tuned.entries import Entry, Point
from lesson.experiments.tuned.rules import Rules
from lesson.settings.settings import Settings

Done = Mapping[str, Run]
"""The runs of a folder that are done, by name."""


@dataclass(frozen=True)
class Case:
    """An entry at one β."""

    entry: Entry
    beta: float
    rules: Rules
    _named: dict[tuple[int, int], tuple[str, Settings]] = field(default_factory=dict, repr=False, compare=False)
    """Name and settings of runs by the index of their point and their seed, kept because validation takes a while."""

    def tuning(self) -> Named:
        """Return the tuning runs by name, one per point; none if the entry has a single point."""
        places = range(len(self.entry.points))
        return dict(self._run(place, self.rules.tuning_seed) for place in places) if len(places) > 1 else {}

    def finals(self, done: Done) -> Named | None:
        """Return the final runs by name; None until all tuning runs are done."""
        place = self._place(done)
        return None if place is None else self.runs_at(place)

    def runs_at(self, place: int) -> Named:
        """Return the final runs with the settings at this index."""
        return dict(self._run(place, seed) for seed in self.rules.seeds)

    def chosen(self, done: Done) -> Point | None:
        """Return the point with the best result, the first if several tie; None until all tuning runs are done."""
        place = self._place(done)
        return None if place is None else self.entry.points[place]

    def scores(self, done: Done) -> list[float | None]:
        """Return the final value of each tuning run: that of a diverged model if it diverged, None if it is missing."""
        made = [done.get(name) for name in self.tuning()]
        return [None if run is None else value_by(self.rules.checked(run), self.rules.tuning_s) for run in made]

    def made(self, done: Done) -> list[Run]:
        """Return the final runs that are done, ordered by seed."""
        return [done[name] for name in self.finals(done) or () if name in done]

    def num_missing(self, done: Done) -> int:
        """Return how many runs are missing."""
        untuned = self.scores(done).count(None)
        return untuned + len(self.rules.seeds) - len(self.made(done))

    def _place(self, done: Done) -> int | None:
        scores = [score for score in self.scores(done) if score is not None]
        if len(scores) < len(self.tuning()):
            return None
        return int(self.rules.measured.order(scores)[0]) if scores else 0

    def _run(self, place: int, seed: int) -> tuple[str, Settings]:
        if (place, seed) not in self._named:
            settings = self.entry.settings(self.entry.points[place], self.beta, seed, self.rules)
            self._named[place, seed] = run_name(settings), settings
        return self._named[place, seed]
