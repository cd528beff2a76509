"""Executes runs one by one in this process, which can use objects that cannot be copied into another process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lesson.experiments.engines.trial import Hear, Line, execute_trial
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
        for path, settings in plan.items():
            raised: list[BaseException] = []  # by `hear`; execute_trial would report it as a failure of the run

            def progress(line: Line, path: Path = path, raised: list[BaseException] = raised) -> None:
                try:
                    hear(path, line)
                except BaseException as error:
                    raised.append(error)
                    raise

            parts = {"data_dir": self.data_dir, "task": self.task}
            last = execute_trial(path, settings, progress=progress, trackers=trackers, **parts)
            if raised:
                raise raised[0]
            hear(path, last)
