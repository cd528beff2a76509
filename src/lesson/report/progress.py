"""Progress of one run as a bar, and of many as a live table, on stderr."""

import contextlib
import math
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from lesson.learn.metric import Metric
from lesson.report.words import metric_number, metric_text
from lesson.settings.sections import RunSettings

MAX_SHOWN, MAX_FAILED_SHOWN = 16, 4


class RunProgress:
    """Shows round, simulated time, the metric, rounds per second and remaining time of a run, on a terminal."""

    def __init__(self, limits: RunSettings) -> None:
        self._limits, self._score = limits, "–"
        console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        self._task = self._progress.add_task("loading", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def report(self, line: dict[str, Any]) -> None:
        """Show a line of metrics."""
        metric = Metric.of(line)
        if metric.name in line:
            self._score = metric_number(metric, line[metric.name], 3)
        speed = line["round"] / (self._progress.tasks[0].elapsed or math.inf)
        text = f"round {line['round']}, {line['time_s']:.0f} s, {metric.name} {self._score}, {speed:.0f} rounds/s"
        share = self._limits.share_done(line["round"], line["time_s"])
        self._progress.update(self._task, completed=share, description=text)


@dataclass
class _ActiveRun:
    """Progress of a run, now and when it was first reported."""

    line: dict[str, Any]
    share: float
    first_round: int
    first_share: float
    metric: Metric
    score: str = "–"
    since_s: float = field(default_factory=time.monotonic)


class StudyProgress:
    """Counts runs and shows those in progress on a terminal; elsewhere, prints a line for each run that has ended."""

    def __init__(self) -> None:
        self._limits: dict[str, RunSettings] = {}
        self._active: dict[str, _ActiveRun] = {}
        self._ended: dict[str, str] = {}
        self.restarts = Counter[str]()
        console = Console(stderr=True)
        self._live = Live(console=console, get_renderable=self.render, transient=True, refresh_per_second=4)
        self._shown = console.is_terminal

    def __enter__(self) -> Self:
        if self._shown:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._live.stop()
        for name, times in self.restarts.items():
            often = "once" if times == 1 else f"{times} times"
            self._tell(f"note: the process of {name} was killed {often} and replaced")

    def report(self, name: str, line: dict[str, Any]) -> None:
        """Handle an event of a run, see `run_missing`."""
        if "study" in line:
            self._tell(f"note: {line['study']} in {name}")
        elif "limits" in line:
            self._limits[name] = line["limits"]
        elif "done" in line or "error" in line:
            self._active.pop(name, None)
            if line.get("traceback") and not any(self._ended.values()):  # others probably failed in the same way
                self._tell(line["traceback"])
            self._ended[name] = line.get("error", "")
            if not self._shown:
                self._print(name, line)
        elif "killed" in line:
            self._active.pop(name, None)
            self.restarts[name] = line["killed"]
        elif "postponed" in line:
            self._active.pop(name, None)
            self._tell(f"note: {name} ran out of memory; it resumes when another run has ended")
        elif "alone" in line:
            self._active.pop(name, None)
            self._tell(f"note: {name} is executed alone, after the other runs: {line['alone']}")
        else:
            share = self._limits[name].share_done(line["round"], line["time_s"])
            metric = Metric.of(line)
            active = self._active.setdefault(name, _ActiveRun(line, share, line["round"], share, metric))
            active.line, active.share = line, share
            if metric.name in line:
                active.score = metric_number(metric, line[metric.name], 3)

    def _print(self, name: str, line: dict[str, Any]) -> None:
        """Print how a run ended, unless it had already finished before this call."""
        outcome = f"failed: {line['error']}" if "error" in line else ""
        if "done" in line and "time_s" in line:
            metric = Metric.of(line)
            score = metric_text(metric, line[metric.name], space=" ")
            outcome = f"{score if metric.is_share else f'{metric.name} {score}'} after {line['time_s']:,.0f} s"
        if outcome:
            who, number = re.sub(r"-seed(\d+)$", r" seed \1", name), f"{len(self._ended)} of {self._num_runs}"
            self._tell(f"{who}: {outcome} ({number} runs)")

    def _tell(self, text: str) -> None:
        """Print a line; on a terminal, above the table."""
        with contextlib.suppress(OSError):  # stderr may be closed
            if self._shown:
                self._live.console.print(text)
            elif sys.stderr is not None:
                print(text, file=sys.stderr, flush=True)

    @property
    def _num_runs(self) -> int:
        return len(self._limits.keys() | self._ended.keys())

    def render(self) -> Group:
        """Return the current table."""
        failed = {name: reason for name, reason in self._ended.items() if reason}
        waiting = self._num_runs - len(self._ended) - len(self._active)
        counts = Text.assemble(
            (f"{len(self._ended) - len(failed)} finished", "green"),
            f", {len(self._active)} running, ",
            (f"{len(failed)} failed", "red" if failed else ""),
            f", {waiting} waiting",
        )
        table = Table("run", box=SIMPLE_HEAD, pad_edge=False)
        names = dict.fromkeys(active.metric.name for active in self._active.values()) or ["accuracy"]
        for heading in ("round", "simulated s", " or ".join(names), "rounds/s", "time left"):
            table.add_column(heading, justify="right", no_wrap=True)
        for name, active in list(self._active.items())[:MAX_SHOWN]:
            table.add_row(*self._row(name, active))
        more = len(self._active) - MAX_SHOWN
        reasons = [Text(f"failed: {name}: {failed[name]}", "red") for name in list(failed)[-MAX_FAILED_SHOWN:]]
        return Group(counts, table, *([Text(f"… and {more} more")] if more > 0 else []), *reasons)

    def _row(self, name: str, active: _ActiveRun) -> list[str]:
        passed_s = max(time.monotonic() - active.since_s, 1e-3)
        speed, gained = (active.line["round"] - active.first_round) / passed_s, active.share - active.first_share
        left = _clock((1 - active.share) * passed_s / gained) if gained > 0 else "–"
        resumed = f" (resumed {self.restarts[name]}×)" if self.restarts[name] else ""
        return [
            name + resumed,
            f"{active.line['round']}",
            f"{active.line['time_s']:.0f}",
            active.score,
            f"{speed:.1f}",
            left,
        ]


def _clock(seconds: float) -> str:
    """Return seconds as minutes:seconds, or as hours:minutes:seconds from one hour on."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
