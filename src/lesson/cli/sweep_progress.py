"""A live table of a sweep: how many trials are done, and one line per trial in progress."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lesson.cli.progress import FinishedRuns
from lesson.settings.settings import Settings

MAX_SHOWN, MAX_FAILED_SHOWN = 16, 4


@dataclass
class _Going:
    """Progress of a trial, now and when it was first reported."""

    line: dict[str, Any]
    share: float
    first_round: int
    first_share: float
    accuracy: float | None = None
    since_s: float = field(default_factory=time.monotonic)


class SweepProgress:
    """Counts trials and shows them on a terminal; elsewhere, it prints a line for each trial that has ended."""

    def __init__(self, trials: Mapping[str, Settings]) -> None:
        self._limits = {name: settings.run for name, settings in trials.items()}
        self._going: dict[str, _Going] = {}
        self._ended: dict[str, str] = {}
        self.restarts = Counter[str]()
        console = Console(stderr=True)
        self._live = Live(console=console, get_renderable=self.render, transient=True, refresh_per_second=4)
        self._shown = console.is_terminal
        self._lines = None if self._shown else FinishedRuns(len(trials))

    def __enter__(self) -> Self:
        if self._shown:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._live.stop()

    def report(self, name: str, line: dict[str, Any]) -> None:
        """Handle an event of a trial."""
        if self._lines is not None:
            self._lines.report(name, line)
        if "done" in line or "error" in line:
            self._going.pop(name, None)
            self._ended[name] = line.get("error", "")
        elif "killed" in line:
            self._going.pop(name, None)
            self.restarts[name] = line["killed"]
        else:
            share = self._share(name, line)
            going = self._going.setdefault(name, _Going(line, share, line["round"], share))
            going.line, going.share = line, share
            going.accuracy = line.get("accuracy", going.accuracy)

    def render(self) -> Group:
        """Return the current table."""
        failed = {name: reason for name, reason in self._ended.items() if reason}
        waiting = len(self._limits) - len(self._ended) - len(self._going)
        counts = Text.assemble(
            (f"{len(self._ended) - len(failed)} done", "green"),
            f", {len(self._going)} running, ",
            (f"{len(failed)} failed", "red" if failed else ""),
            f", {waiting} waiting",
        )
        table = Table("trial", box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("round", "simulated s", "accuracy", "rounds/s", "left"):
            table.add_column(heading, justify="right", no_wrap=True)
        for name, going in list(self._going.items())[:MAX_SHOWN]:
            table.add_row(*self._row(name, going))
        more = len(self._going) - MAX_SHOWN
        reasons = [Text(f"failed: {name}: {failed[name]}", "red") for name in list(failed)[-MAX_FAILED_SHOWN:]]
        return Group(counts, table, *([Text(f"… and {more} more")] if more > 0 else []), *reasons)

    def _row(self, name: str, going: _Going) -> list[str]:
        passed_s = max(time.monotonic() - going.since_s, 1e-3)
        speed, gained = (going.line["round"] - going.first_round) / passed_s, going.share - going.first_share
        left = _clock((1 - going.share) * passed_s / gained) if gained > 0 else "–"
        accuracy = "–" if going.accuracy is None else f"{going.accuracy:.3f}"
        again = f" (resumed {self.restarts[name]}×)" if self.restarts[name] else ""
        return [name + again, f"{going.line['round']}", f"{going.line['time_s']:.0f}", accuracy, f"{speed:.1f}", left]

    def _share(self, name: str, line: dict[str, Any]) -> float:
        """Return the completed fraction of a trial, from 0 to 1."""
        limits = self._limits[name]
        by_time = line["time_s"] / limits.time_budget_s if math.isfinite(limits.time_budget_s) else 0.0
        return min(1.0, max(by_time, line["round"] / limits.rounds if limits.rounds else 0.0))


def _clock(seconds: float) -> str:
    """Return seconds as minutes:seconds, or as hours:minutes:seconds from one hour on."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
