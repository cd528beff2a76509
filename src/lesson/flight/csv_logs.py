"""Conversion of CSV logs of other software to recordings.

A row is one job: which client was asked to train, when, and when its reply arrived; docs/reference/recordings.md
describes the columns.
"""

import os
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from lesson.core.csv_rows import read_rows
from lesson.core.errors import InputError, printable
from lesson.core.files import check_output, write_whole
from lesson.flight.recording import MAX_S, Event, Header, line_of, longest_s, problem_of

if TYPE_CHECKING:  # it takes a while to import
    import pandas as pd

REQUIRED = ("client", "asked_s", "arrived_s")
OPTIONAL = ("round", "compute_s", "downloaded_s", "trained_s", "num_samples", "energy_j", "reason", "failed_s")
TIMES = ["asked_s", "downloaded_s", "trained_s", "arrived_s", "failed_s"]
"""Columns of times, in the order in which things happen."""
NUMBERS, WHOLE = ("round", "compute_s", "num_samples", "energy_j"), {"round", "num_samples"}
TIME_ZONE = r"(?:Z|[+-]\d\d:?\d\d)$"
MAX_TIME_S = 1e12
"""Largest absolute time in seconds; Unix times in milliseconds are larger."""
NO_REPLY = "no reply"
"""Reason of jobs without a reply, if the file gives none."""


def import_csv(path: Path, out: Path) -> str:
    """Convert a CSV file to the recording `out`; return a line that summarizes it.

    Raises:
        InputError: The file cannot be read, a value is invalid, or `out` exists. The message names line and column.
    """
    import pandas as pd

    check_output(out, "out", [".jsonl"])
    if os.path.lexists(out):
        raise InputError(f"{out} exists; remove it or choose another output file")
    rows = list(read_rows(path, "a log", REQUIRED, OPTIONAL))
    if not rows:
        raise InputError(f"{path} has no rows; add some below the header")
    lines, cells = zip(*rows, strict=True)
    text = pd.DataFrame(cells, index=lines, columns=[*REQUIRED, *OPTIONAL], dtype=str)
    jobs, began = _read_times(path, text)
    for column in NUMBERS:
        jobs[column] = pd.to_numeric(text[column], errors="coerce")
        _check(path, text, column, (text[column] == "") | np.isfinite(jobs[column]), "must be a number")
    jobs[["client", "reason"]] = text[["client", "reason"]]
    _check_order(path, text, jobs)
    jobs = jobs.sort_values("asked_s", kind="stable")
    _end_unanswered(jobs)
    events = _events(path, jobs)
    header = Header(began=began, source=f"imported from {printable(path.name)}")
    write_whole(out, (line_of(header) + "".join(map(line_of, events))).encode())
    arrived, failed = int(jobs["arrived_s"].count()), int(jobs["failed_s"].count())
    return (
        f"{len(jobs)} jobs of {jobs['client'].nunique()} clients in {events[-1].t_s:.6g} s: {arrived} arrived, "
        f"{failed} failed, {len(jobs) - arrived - failed} open"
    )


def _read_times(path: Path, text: "pd.DataFrame") -> "tuple[pd.DataFrame, str]":
    """Return the times in seconds since the earliest one, and its date if the time zone is known.

    Empty cells become NaN. The first time determines whether all are numbers, or dates with or without a time zone.
    """
    import pandas as pd

    _check(path, text, "asked_s", text["asked_s"] != "", "must be given")
    first = text["asked_s"].iloc[0]
    zone, is_date = bool(re.search(TIME_ZONE, first)), bool(np.isnan(pd.to_numeric(first, errors="coerce")))
    must = f"must be seconds, at most {MAX_TIME_S:.0e}, or an ISO 8601 date and time; the same kind in all rows"
    seconds = pd.DataFrame(index=text.index)
    for column in TIMES:
        if is_date:
            of_kind = text[column].where(text[column].str.contains(TIME_ZONE) == zone)
            dates = pd.to_datetime(of_kind, format="ISO8601", utc=True, errors="coerce")
            seconds[column] = (dates - pd.Timestamp("1970-01-01", tz="UTC")) / pd.Timedelta(seconds=1)
        else:
            seconds[column] = pd.to_numeric(text[column], errors="coerce")
        _check(path, text, column, (text[column] == "") | (seconds[column].abs() <= MAX_TIME_S), must)
    zero_s, end_s = float(seconds["asked_s"].min()), float(seconds.max().max())
    if end_s - zero_s > MAX_S:
        raise InputError(f"{path} must span at most {MAX_S:g} s, got {end_s - zero_s:g} s")
    began = pd.Timestamp(zero_s, unit="s", tz="UTC").round("us").isoformat() if is_date and zone else ""
    return (seconds - zero_s).round(6), began


def _check_order(path: Path, text: "pd.DataFrame", jobs: "pd.DataFrame") -> None:
    """Raise InputError if the times of a job contradict each other."""
    both = jobs["arrived_s"].notna() & jobs["failed_s"].notna()
    _check(path, text, "failed_s", ~both, "must be empty if arrived_s is given")
    latest_s = jobs[TIMES].ffill(axis=1)
    for before, column in pairwise(TIMES):
        _check(path, text, column, latest_s[before] <= latest_s[column], "must not be before the job's earlier times")
    is_open = jobs["arrived_s"].isna() & jobs["failed_s"].isna()
    too_long = jobs["compute_s"] > longest_s(latest_s["failed_s"] - jobs["asked_s"])
    _check(path, text, "compute_s", is_open | ~too_long, "must not exceed the time of the job")


def _end_unanswered(jobs: "pd.DataFrame") -> None:
    """Set when jobs without a reply failed, if the file does not give the time: when the client was next asked.

    If it was not asked again, a job with a reason failed at the end of the file, and a job without one stays open.
    """
    is_open = jobs["arrived_s"].isna() & jobs["failed_s"].isna()
    by_client = jobs.groupby("client")["asked_s"]
    again_s = by_client.shift(-1)
    again_s = again_s.where(again_s > jobs["asked_s"]).groupby(jobs["client"]).bfill()  # asked twice at the same time
    last_s = float(jobs[TIMES].max().max())
    failed_s = again_s.fillna(jobs["reason"].map(lambda reason: last_s if reason else np.nan))
    jobs.loc[is_open, "failed_s"] = failed_s.clip(lower=jobs[TIMES].max(axis=1))[is_open]
    ended = is_open & jobs["failed_s"].notna()
    jobs.loc[ended & (jobs["reason"] == ""), "reason"] = NO_REPLY
    waited_s = jobs["failed_s"] - jobs["asked_s"]
    jobs.loc[ended & (jobs["compute_s"] > longest_s(waited_s)), "compute_s"] = np.nan


def _events(path: Path, jobs: "pd.DataFrame") -> list[Event]:
    """Return the events of all jobs in order of time; raise InputError if a value is invalid."""
    events = []
    for number, (line, job) in enumerate(jobs.iterrows(), 1):
        given: dict[str, Any] = {str(name): value for name, value in job.dropna().items()}
        for name in WHOLE & given.keys():
            given[name] = int(given[name]) if given[name] % 1 == 0 else given[name]
        same = {"client": given.pop("client"), "job": str(number)}
        asked = {"t_s": given.pop("asked_s"), "round": given.pop("round", 0)}
        ends = {kind: given.pop(f"{kind}_s") for kind in ("arrived", "failed") if f"{kind}_s" in given}
        try:
            events.append(Event(event="asked", **asked, **same))
            events += [Event(event=kind, t_s=t_s, **same, **given) for kind, t_s in ends.items()]
        except ValidationError as error:
            raise InputError(f"{path} line {line}: {problem_of(error)}") from None
    return sorted(events, key=lambda event: event.t_s)  # stable: a job is asked before its reply arrives


def _check(path: Path, text: "pd.DataFrame", column: str, right: "pd.Series[bool]", must: str) -> None:
    """Raise InputError for the first invalid row."""
    if not right.all():
        row = int(np.argmin(right))
        cell = printable(text[column].iloc[row], 60)
        raise InputError(f"{path} line {text.index[row]}: {column} {must}, got '{cell}'")
