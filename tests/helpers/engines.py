"""An engine that starts no processes, for tests that do not depend on them."""

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lesson.experiments.engines.trial import Event, Line, execute_trial
from lesson.runs.trackers import Tracker
from lesson.settings.settings import Settings


class ThisProcess:
    """Executes runs one after the other in this process, which has already imported torch.

    `parts` are keyword arguments of `execute_trial`.
    """

    def __init__(self, **parts: Any) -> None:
        self.parts = {"num_threads": 1} | parts

    def check(self) -> None: ...

    def run(self, plan: Mapping[Path, Settings], trackers: Sequence[Tracker] = ()) -> Generator[Event, None, None]:
        for path, settings in plan.items():
            lines = list[Line]()
            last = execute_trial(path, settings, progress=lines.append, trackers=trackers, **self.parts)
            yield from ((path, line) for line in [*lines, last])
