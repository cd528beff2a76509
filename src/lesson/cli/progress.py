"""Progress bars: one per run in progress, and one for all runs."""

import contextlib
import math
import re
import sys
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lesson.settings.settings import Settings


class FinishedRuns:
    """Prints a line on stderr for each run that has ended, for output that is not a terminal."""

    def __init__(self, num_runs: int) -> None:
        self._num_runs, self._ended = num_runs, 0

    def report(self, name: str, line: dict[str, Any]) -> None:
        """Handle an event of a run; a run that had finished before is counted, but not printed."""
        if not {"done", "error"} & line.keys():
            return
        self._ended += 1
        said = f"failed: {line['error']}" if "error" in line else ""
        if "accuracy" in line:
            said = f"{100 * line['accuracy']:.1f} % after {line['time_s']:,.0f} s"
        if said and sys.stderr is not None:
            who = re.sub(r"-seed(\d+)$", r" seed \1", name)
            with contextlib.suppress(OSError):  # stderr may be closed
                print(f"{who}: {said} ({self._ended} of {self._num_runs} runs)", file=sys.stderr, flush=True)


class RunProgress:
    """Shows round, simulated time, accuracy, rounds per second and remaining time, on a terminal.

    Elsewhere, if there are several runs, it prints a line when each of them has ended.
    """

    def __init__(self, settings: Settings, num_runs: int) -> None:
        limits = settings.run
        self._by_time = math.isfinite(limits.time_budget_s)
        self._total = limits.time_budget_s if self._by_time else float(limits.rounds or 1)
        self._num_runs = num_runs
        self._done: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        console = Console(stderr=True)
        self._lines = FinishedRuns(num_runs) if num_runs > 1 and not console.is_terminal else None
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        self._all = self._progress.add_task("loading", total=self._total * self._num_runs, said="")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def report(self, name: str, line: dict[str, Any]) -> None:
        """Handle an event of a run."""
        if self._lines is not None:
            self._lines.report(name, line)
        if "done" in line or "error" in line:
            self._done[name] = self._total
            if name in self._tasks:
                self._progress.remove_task(self._tasks.pop(name))
        else:
            self._done[name] = float(line["time_s"] if self._by_time else line["round"])
            self._show(name, line)
        ended = sum(done >= self._total for done in self._done.values())
        description = f"{ended} of {self._num_runs} runs" if self._num_runs > 1 else "all"
        self._progress.update(self._all, completed=sum(self._done.values()), description=description)

    def _show(self, name: str, line: dict[str, Any]) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=self._total, said="", accuracy="")
        task = self._progress.tasks[self._progress.task_ids.index(self._tasks[name])]
        accuracy = f"{line['accuracy']:.3f}" if "accuracy" in line else task.fields["accuracy"]
        speed = line["round"] / task.elapsed if task.elapsed else 0.0
        said = f"round {line['round']}, {line['time_s']:.0f} s, accuracy {accuracy or '–'}, {speed:.0f} rounds/s"
        self._progress.update(self._tasks[name], completed=self._done[name], said=said, accuracy=accuracy)
