"""An engine that trains nothing, for tests of what surrounds the runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.run_folders import begin_run, write_run
from lesson.experiments.engines import Line
from lesson.experiments.engines.trial import Hear
from lesson.runs.trackers import Tracker
from lesson.settings.settings import Settings


class FakeEngine:
    """Writes made-up runs; those in `errors` fail with that line, and no run starts after `at_most` of them."""

    def __init__(self, errors: Mapping[str, Line] | None = None, at_most: int = 1000) -> None:
        self.errors, self.at_most = errors or {}, at_most
        self.asked: list[list[str]] = []
        """The names of the runs it was given, by call."""

    def run(self, plan: Mapping[Path, Settings], hear: Hear, trackers: Sequence[Tracker] = ()) -> None:
        self.asked.append([path.name for path in plan])
        for path, settings in list(plan.items())[: self.at_most]:
            self.at_most -= 1
            self.execute(path, settings, hear)

    def execute(self, path: Path, settings: Settings, hear: Hear) -> None:
        """Write one run, and report how it ended."""
        if path.name in self.errors:
            begin_run(path, settings)
            hear(path, self.errors[path.name])
        else:
            write_run(path, settings)
            hear(path, {"done": True, "accuracy": 0.9, "time_s": 600.0})
