"""Conversion of CSV logs of other software to recordings.

A row is one job: which client was asked to train, when, and when its reply arrived; docs/reference/recordings.md
describes the columns. Times are converted exactly, so a recording has the times of its file.
"""

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import Any, NoReturn

from lesson.core.csv_rows import read_rows
from lesson.core.errors import InputError, printable
from lesson.core.files import check_output, write_whole
from lesson.core.validation import MAX_SAMPLES
from lesson.flight.recording import MAX_EVENTS, MAX_NAME, MAX_S, Event, Header, line_of

REQUIRED = ("client", "asked_s", "arrived_s")
OPTIONAL = ("round", "compute_s", "downloaded_s", "trained_s", "num_samples", "energy_j", "reason", "failed_s")
MAX_TIME_S = Decimal(10) ** 12
"""Largest absolute time in seconds; Unix times in milliseconds are larger."""
MAX_VALUE = Decimal(10) ** 15
MAX_REASON = 1000
NO_REPLY = "no reply"
"""Reason of jobs without a reply, if the file gives none."""


def import_csv(path: Path, out: Path) -> str:
    """Convert a CSV file to the recording `out`; return a line that says what it contains.

    Raises:
        InputError: The file cannot be read, a value is invalid, or `out` exists. The message names the line.
    """
    check_output(out, "out", [".jsonl"])
    if os.path.lexists(out):
        raise InputError(f"{out} exists; remove it or choose another output file")
    rows, clock = _read(path)
    jobs = sorted(rows, key=lambda row: (row.asked, row.line))
    first, last = jobs[0].asked, max(job.latest for job in jobs)
    if last - first > MAX_S:
        raise InputError(f"{path} must span at most {MAX_S:g} s, got {float(last - first):g} s")
    _end_unanswered(jobs, last)
    events = [event for number, job in enumerate(jobs, 1) for event in job.events(str(number), first)]
    if len(events) >= MAX_EVENTS:
        raise InputError(f"{path} has too many rows for a recording of {MAX_EVENTS} lines; split it")
    events.sort(key=lambda event: event.t_s)  # stable: a job that took no time is asked before its reply arrives
    header = Header(began=clock.date_of(first), source=f"imported from {printable(path.name)}")
    write_whole(out, (line_of(header) + "".join(map(line_of, events))).encode())
    return _summary(jobs, events[-1].t_s)


@dataclass
class _Row:
    """A job. Times are in seconds, on the scale of the file."""

    line: int
    client: str
    asked: Decimal
    downloaded: Decimal | None
    trained: Decimal | None
    arrived: Decimal | None
    failed: Decimal | None
    reason: str
    round: int
    told: dict[str, Any]
    """Fields of the event that ends the job."""

    @property
    def ended(self) -> Decimal | None:
        return self.failed if self.arrived is None else self.arrived

    @property
    def latest(self) -> Decimal:
        """The last known time of the job."""
        return max(time for time in (self.asked, self.downloaded, self.trained, self.ended) if time is not None)

    def events(self, job: str, zero: Decimal) -> Iterator[Event]:
        """Yield the events of the job; times count from `zero`."""
        common: dict[str, Any] = {"client": self.client, "job": job}
        yield Event(event="asked", t_s=float(self.asked - zero), round=self.round, **common)
        if self.ended is not None:
            marks = {"downloaded_s": self.downloaded, "trained_s": self.trained}
            told = self.told | {name: float(mark - zero) for name, mark in marks.items() if mark is not None}
            kind = "failed" if self.arrived is None else "arrived"
            yield Event(event=kind, t_s=float(self.ended - zero), reason=self.reason, **common, **told)


def _read(path: Path) -> tuple[list[_Row], "_Clock"]:
    rows, clock = list[_Row](), _Clock()
    for line, cells in read_rows(path, "a log", REQUIRED, OPTIONAL):
        rows.append(_Cells(path, line, dict(zip((*REQUIRED, *OPTIONAL), cells, strict=True)), clock).row())
    if not rows:
        raise InputError(f"{path} has no rows; add some below the header")
    return rows, clock


def _end_unanswered(jobs: list[_Row], last: Decimal) -> None:
    """Set when jobs without a reply failed, if the file does not say so: when the client was asked again, if it was.

    Otherwise, a job with a reason failed at `last`, and one without a reason is left open.
    """
    asked = dict[str, list[Decimal]]()
    for job in jobs:
        asked.setdefault(job.client, []).append(job.asked)
    for job in jobs:
        if job.ended is None:
            times = asked[job.client]
            later = bisect_right(times, job.asked)
            again = times[later] if later < len(times) else last if job.reason else None
            if again is not None:
                job.failed = max(again, job.latest)
                job.reason = job.reason or NO_REPLY
                if _is_too_long(job.told, job.failed - job.asked):  # longer than the server waited
                    del job.told["compute_s"]


def _summary(jobs: list[_Row], end_s: float) -> str:
    arrived = sum(job.arrived is not None for job in jobs)
    failed = sum(job.failed is not None for job in jobs)
    clients = len({job.client for job in jobs})
    return (
        f"{len(jobs)} jobs of {clients} clients in {end_s:.6g} s: {arrived} arrived, {failed} failed, "
        f"{len(jobs) - arrived - failed} open"
    )


@dataclass
class _Clock:
    """The kind of times in a file, which its first time determines: seconds or dates, with or without a time zone."""

    kind: str = ""
    line: int = 0

    def read(self, cell: str, line: int) -> Decimal | str:
        """Return a time in seconds, or what it must be."""
        time, kind = _number(cell), "a number of seconds"
        if time is None:
            date = _date(cell)
            if date is None:
                return self._wanted("a number of seconds or an ISO 8601 date and time")
            kind = "an ISO 8601 date and time with" + ("out" if date.tzinfo is None else "") + " a time zone"
            passed = date.replace(tzinfo=date.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
            time = Decimal(passed // timedelta(microseconds=1)) / 10**6
        if not self.kind:
            self.kind, self.line = kind, line
        return time if kind == self.kind else self._wanted(kind)

    def _wanted(self, kinds: str) -> str:
        return f"{self.kind}, as on line {self.line}" if self.kind else kinds

    def date_of(self, time: Decimal) -> str:
        """Return the date of a time in UTC; empty if times are seconds, or if their time zone is unknown."""
        if not self.kind.endswith("with a time zone"):
            return ""
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(time * 10**6))).isoformat()


@dataclass
class _Cells:
    """The cells of a row, by column."""

    path: Path
    line: int
    cells: dict[str, str]
    clock: _Clock
    told: dict[str, Any] = field(default_factory=dict)

    def row(self) -> _Row:
        """Return the job; raise InputError if a value is invalid."""
        client, reason = self.cells["client"], self.cells["reason"]
        if not client or len(client) > MAX_NAME or not client.isprintable():
            self._fail(f"client must be a name of at most {MAX_NAME} printable characters", client)
        if len(reason) > MAX_REASON:
            self._fail(f"reason must have at most {MAX_REASON} characters", reason)
        asked = self._time("asked_s")
        if asked is None:
            self._fail("asked_s must be given", "")
        times = {name: self._time(name) for name in ("downloaded_s", "trained_s", "arrived_s", "failed_s")}
        if times["arrived_s"] is not None and times["failed_s"] is not None:
            self._fail("failed_s must be empty if arrived_s is given", self.cells["failed_s"])
        marks = {"asked_s": asked} | {name: time for name, time in times.items() if time is not None}
        for (before, early), (name, late) in zip(marks.items(), list(marks.items())[1:], strict=False):
            if late < early:
                self._fail(f"{name} must not be before {before}", self.cells[name])
        self._tell("compute_s", Decimal(0), Decimal(MAX_S))
        self._tell("energy_j", Decimal(0), MAX_VALUE)
        self._tell("num_samples", Decimal(1), Decimal(MAX_SAMPLES), whole=True)
        ended = times["arrived_s"] if times["failed_s"] is None else times["failed_s"]
        if ended is not None and _is_too_long(self.told, ended - asked):
            self._fail(f"compute_s must not exceed the {float(ended - asked):g} s of the job", self.cells["compute_s"])
        in_round = self._value("round", Decimal(0), MAX_VALUE, whole=True)
        return _Row(
            self.line,
            client,
            asked,
            downloaded=times["downloaded_s"],
            trained=times["trained_s"],
            arrived=times["arrived_s"],
            failed=times["failed_s"],
            reason=reason,
            round=int(in_round or 0),
            told=self.told,
        )

    def _time(self, name: str) -> Decimal | None:
        cell = self.cells[name]
        if not cell:
            return None
        time = self.clock.read(cell, self.line)
        if isinstance(time, str):
            self._fail(f"{name} must be {time}", cell)
        if not -MAX_TIME_S <= time <= MAX_TIME_S:
            self._fail(f"{name} must be at most {MAX_TIME_S:.0e} s from 0", cell)
        return time

    def _tell(self, name: str, least: Decimal, most: Decimal, *, whole: bool = False) -> None:
        value = self._value(name, least, most, whole=whole)
        if value is not None:
            self.told[name] = int(value) if whole else float(value)

    def _value(self, name: str, least: Decimal, most: Decimal, *, whole: bool = False) -> Decimal | None:
        cell = self.cells[name]
        value = _number(cell)
        if cell and (value is None or not least <= value <= most or (whole and value % 1)):
            self._fail(f"{name} must be a {'whole ' if whole else ''}number from {least} to {most:.0e}", cell)
        return value

    def _fail(self, problem: str, cell: str) -> NoReturn:
        raise InputError(f"{self.path} line {self.line}: {problem}, got '{printable(cell, 60)}'")


def _is_too_long(told: dict[str, Any], took_s: Decimal) -> bool:
    """Return whether the compute time exceeds the time of the job, with the tolerance of `read_recording`."""
    return bool(told.get("compute_s", 0.0) > float(took_s) * 1.01 + 0.01)


def _number(cell: str) -> Decimal | None:
    """Return the number in a cell; None if there is none, or in a notation that only Python accepts."""
    with contextlib.suppress(DecimalException):
        value = Decimal(cell) if cell.isascii() and "_" not in cell else None
        return value if value is not None and value.is_finite() else None
    return None


def _date(cell: str) -> datetime | None:
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(cell)
    return None
