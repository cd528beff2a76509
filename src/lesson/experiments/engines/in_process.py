"""Executes runs one by one in this process, which can use objects that cannot be copied into another process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lesson.experiments.engines.trial import Hear, execute_trial
from lesson.learn.task import Task
from lesson.runs.trackers import Tracker
from lesson.settings.settings import Settings


@dataclass(frozen=True)
class InProcessEngine:
    """Executes one run at a time, with your own task if it is given."""

    data_dir: Path | str | None = None
    task: Task | None = None

    def run(self, plan: Mapping[Path, Settings], hear: Hear, trackers: Sequence[Tracker] = ()) -> None:
        """Execute the runs, see `Engine`."""
        parts = {"data_dir": self.data_dir, "task": self.task}
        for path, settings in plan.items():
            progress = partial(hear, path)
            progress(execute_trial(path, settings, progress=progress, trackers=trackers, **parts))
