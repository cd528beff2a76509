"""Recordings of real federations, as written to `flight.jsonl`; docs/reference/recordings.md describes the format.

The first line of a recording describes the run; every other line is an event at `t_s` seconds after the run began, in
order of time. A recording holds times and sample counts, but neither data nor weights. Files may come from elsewhere,
so every value is checked here, and an error names the line.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError, printable
from lesson.core.validation import MAX_SAMPLES, wanted_by

FORMAT = 1
FLIGHT = "flight.jsonl"
MAX_LINE = 1 << 20
MAX_EVENTS = 5_000_000
MAX_S = 1e10
"""Largest time in seconds, about 300 years."""
MAX_NAME = 200

ARRIVED, FAILED, OPEN = 0, 1, 2
"""Outcomes of a job; OPEN if the recording ends before its reply."""
RESTARTED = "server restarted"
"""Reason of jobs that failed because the server process ended."""


def _check_name(name: str) -> str:
    if not name.isprintable():
        raise ValueError("must not contain control characters")
    return name


Seconds = Annotated[float, Field(ge=0, le=MAX_S, strict=True)]
Count = Annotated[int, Field(ge=0, le=10**15, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, strict=True), AfterValidator(_check_name)]
Text = Annotated[str, Field(max_length=1000, strict=True)]
Title = Annotated[str, Field(max_length=1000, strict=True), AfterValidator(_check_name)]


class _Line(BaseModel):
    """Schema of a line. Unknown fields are ignored: newer versions may add some."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


Item = TypeVar("Item", bound=_Line)


class Header(_Line):
    """First line of a recording."""

    flight: Annotated[int, Field(ge=1, le=10**6, strict=True)] = FORMAT
    """Version of the format."""
    began: Title = ""
    """When the run began, as an ISO 8601 date and time in UTC."""
    source: Title = ""
    """Software that wrote the recording, such as "lesson 0.2.0, flwr 1.41.0"."""
    strategy: Title = ""
    """Name of the strategy; empty if unknown."""
    deadline_s: Annotated[float, Field(gt=0, le=MAX_S, strict=True)] | None = None
    """Deadline of the strategy in seconds; None if it has none."""


class Event(_Line):
    """One event. Times are seconds since the run began, on the server's clock."""

    event: Literal["connected", "left", "asked", "arrived", "failed", "round", "resumed"]
    t_s: Seconds
    client: Name | None = None
    """Stable name of the client."""
    job: Name | None = None
    """Identifies a request and its reply."""
    kind: Literal["train", "evaluate", "query"] = "train"
    """What the client was asked to do."""
    round: Count = 0
    """Round in which the client was asked, or that ended; 0 if unknown."""
    bytes: Count | None = None
    """Size of the arrays in the request or in the reply."""
    num_samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES, strict=True)] | None = None
    """Samples that the client trained on."""
    downloaded_s: Seconds | None = None
    """When the client had received the request, if its clock agrees with the server's."""
    trained_s: Seconds | None = None
    """When it had finished its work."""
    uploaded_s: Seconds | None = None
    """When the server had received the reply, if that was noticed before the strategy saw it."""
    compute_s: Seconds | None = None
    """Time the work took, by the client's own clock."""
    energy_j: Annotated[float, Field(ge=0, le=1e15, strict=True)] | None = None
    """Energy that the client used, if it reports it."""
    reason: Text = ""
    """Why a job failed."""
    merged: list[Name] | None = None
    """Clients whose updates were aggregated in a round that ended; None if unknown."""
    staleness: list[Count] | None = None
    """Staleness of each aggregated update in versions, in the order of `merged`."""


@dataclass(frozen=True, eq=False)
class Jobs:
    """All training jobs in the order in which they were asked; arrays have shape (num_jobs,), NaN where unknown."""

    client: IntArray
    round: IntArray
    asked_s: FloatArray
    ended_s: FloatArray
    """When the reply arrived, or when the server noticed that there will be none."""
    outcome: IntArray
    """ARRIVED, FAILED or OPEN."""
    compute_s: FloatArray
    num_samples: IntArray
    """0 if unknown."""
    energy_j: FloatArray
    reason: npt.NDArray[np.object_]
    """Why a job failed; empty if it did not, or if the reason is unknown."""

    def __len__(self) -> int:
        return len(self.client)

    @property
    def latency_s(self) -> FloatArray:
        """Seconds from the request to the reply, or until the server noticed that there will be none."""
        return self.ended_s - self.asked_s

    def where(self, chosen: BoolArray) -> "Jobs":
        """Return some of the jobs."""
        return Jobs(**{name: values[chosen] for name, values in vars(self).items()})


@dataclass(frozen=True)
class Round:
    """A round that ended, with the clients whose updates were aggregated in it; None if unknown."""

    round: int
    end_s: float
    merged: tuple[int, ...] | None = None
    staleness: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Recording:
    """A recording of a federation.

    Attributes:
        name: Name of the file.
        header: First line of the file.
        names: Names of all clients, sorted.
        jobs: Training jobs.
        rounds: Rounds in the order in which they ended.
        intervals: When clients were connected: (client, from_s, to_s) with `to_s` inf while connected at the end. A
            client without intervals is assumed to be connected all the time.
        begin_s: When the first client was asked to train.
        end_s: Time of the last event.
        resumed_s: When the server was restarted.
    """

    name: str
    header: Header
    names: tuple[str, ...]
    jobs: Jobs
    rounds: tuple[Round, ...]
    intervals: tuple[tuple[int, float, float], ...]
    begin_s: float
    end_s: float
    resumed_s: tuple[float, ...] = ()


def read_recording(path: Path | str) -> Recording:
    """Read a recording.

    Raises:
        InputError: The file cannot be read, is damaged, or has no training job. The message names the line.
    """
    header, events = _read(Path(path))
    return events.build(header)


def read_progress(path: Path | str) -> tuple[float, int]:
    """Return the time of the last event of a recording in seconds, and how many jobs it has so far."""
    _, events = _read(Path(path))
    return events.now_s, len(events.jobs)


def _read(path: Path) -> tuple[Header, "_Events"]:
    lines = _lines(path)
    header, events = _read_header(path, lines), _Events(path)
    for number, text in lines:
        events.add(number, _parse(path, number, text, Event))
    return header, events


def longest_s(took_s: Any) -> Any:
    """Return the longest compute time of a job, or of a column of jobs, that took so long; clocks may differ."""
    return took_s * 1.01 + 0.01


def line_of(item: Header | Event) -> str:
    """Return a header or an event as a line of a recording; fields with default values are left out."""
    first = {"flight": item.flight} if isinstance(item, Header) else {}
    return json.dumps(first | item.model_dump(exclude_defaults=True), allow_nan=False, ensure_ascii=False) + "\n"


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line; raise InputError if the file is not text, or a line is too long."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
                if len(line) > MAX_LINE:
                    raise InputError(f"{path} line {number}: a line must have at most {MAX_LINE} bytes")
                if not line.endswith(b"\n"):
                    raise InputError(f"{path} line {number} is incomplete; remove it to use the rest")
                if number > MAX_EVENTS:
                    raise InputError(f"{path} has more than {MAX_EVENTS} lines; split it")
                if text := line.decode("utf-8-sig" if number == 1 else "utf-8").strip():
                    yield number, text
    except FileNotFoundError:
        remedy = "record a run with lesson.flower.RecordingGrid, or import a log with 'lesson record import'"
        raise InputError(f"{path} does not exist; {remedy}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} cannot be read: it must be text in UTF-8") from None


def _read_header(path: Path, lines: Iterator[tuple[int, str]]) -> Header:
    number, text = next(lines, (1, ""))
    if not text or '"flight"' not in text:
        got = printable(text, 60) if text else "an empty file"
        raise InputError(f'{path} line {number}: a recording must start with {{"flight": {FORMAT}, …}}, got {got}')
    header = _parse(path, number, text, Header)
    if header.flight > FORMAT:
        raise InputError(
            f"{path} has format {header.flight}, this version reads up to {FORMAT}; install a newer version of lesson"
        )
    return header


def _parse(path: Path, number: int, text: str, kind: type[Item]) -> Item:
    """Return the object on a line; raise InputError that names the first invalid field."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise InputError(f"{path} line {number} is not JSON: {printable(text, 60)}") from None
        raise InputError(f"{path} line {number}: {problem_of(error)}") from None


def problem_of(error: ValidationError) -> str:
    """Return what the first invalid field of an event must be."""
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"])) or "an event"
    if first["type"] == "missing":
        return f"{name} must be given"
    must = first["ctx"]["error"] if first["type"] == "value_error" else f"must be {wanted_by(first)}"
    return f"{name} {must}, got {printable(json.dumps(first['input'], default=str), 60)}"


@dataclass(slots=True)
class _Job:
    """A job while its recording is read."""

    client: str
    kind: str
    round: int
    asked_s: float
    ended_s: float = math.nan
    outcome: int = OPEN
    compute_s: float = math.nan
    num_samples: int = 0
    energy_j: float = math.nan
    reason: str = ""


@dataclass
class _Events:
    """Collects the events of a recording and checks that they fit together."""

    path: Path
    now_s: float = 0.0
    jobs: dict[str, _Job] = field(default_factory=dict)
    open_jobs: dict[str, _Job] = field(default_factory=dict)
    """Jobs that have not ended."""
    rounds: list[tuple[int, Event]] = field(default_factory=list)
    since_s: dict[str, float] = field(default_factory=dict)
    """When each connected client connected."""
    intervals: list[tuple[str, float, float]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    resumed_s: list[float] = field(default_factory=list)

    def add(self, line: int, event: Event) -> None:
        """Add an event; raise InputError if it contradicts those before."""
        if event.t_s < self.now_s:
            self._fail(
                line, f"t_s must not be less than {self.now_s:.12g}, as on the line before, got {event.t_s:.12g}"
            )
        self.now_s = event.t_s
        match event.event:
            case "round":
                self.rounds.append((line, event))
                self.names.update(event.merged or ())
            case "resumed":
                self._resume(event)
            case "connected" | "left":
                self._connect(line, event)
            case "asked":
                self._ask(line, event)
            case "arrived" | "failed":
                self._end(line, event)

    def build(self, header: Header) -> Recording:
        """Return the recording; raise InputError if it has no training job."""
        jobs = sorted((job for job in self.jobs.values() if job.kind == "train"), key=lambda job: job.asked_s)
        if not jobs:
            raise InputError(f"{self.path} has no training job; record a run in which clients train")
        names = tuple(sorted(self.names))
        place = {name: number for number, name in enumerate(names)}
        open_intervals = [(name, since_s, math.inf) for name, since_s in self.since_s.items()]
        intervals = [(place[name], *span) for name, *span in self.intervals + open_intervals]

        columns = ("round", "asked_s", "ended_s", "outcome", "compute_s", "num_samples", "energy_j")
        return Recording(
            name=self.path.name,
            header=header,
            names=names,
            jobs=Jobs(
                client=np.array([place[job.client] for job in jobs]),
                reason=np.array([job.reason for job in jobs], dtype=object),
                **{name: np.array([getattr(job, name) for job in jobs]) for name in columns},
            ),
            rounds=tuple(self._round(line, event, place) for line, event in self.rounds),
            intervals=tuple(sorted(intervals)),  # type: ignore[arg-type]  # (client, from_s, to_s)
            begin_s=jobs[0].asked_s,
            end_s=self.now_s,
            resumed_s=tuple(self.resumed_s),
        )

    def _round(self, line: int, event: Event, place: dict[str, int]) -> Round:
        merged, staleness = event.merged, event.staleness
        if staleness is not None and (merged is None or len(merged) != len(staleness)):
            self._fail(line, "staleness must have as many values as merged")
        clients = None if merged is None else tuple(place[name] for name in merged)
        return Round(event.round, event.t_s, clients, None if staleness is None else tuple(staleness))

    def _connect(self, line: int, event: Event) -> None:
        name = self._client(line, event)
        since_s = self.since_s.pop(name, None)
        if event.event == "connected":
            self.since_s[name] = event.t_s if since_s is None else since_s
        elif since_s is None:
            self._fail(line, f"client '{name}' left without an event 'connected'")
        elif event.t_s > since_s:
            self.intervals.append((name, since_s, event.t_s))

    def _resume(self, event: Event) -> None:
        """End all jobs and connections: the server process was restarted."""
        self.resumed_s.append(event.t_s)
        for job in self.open_jobs.values():
            job.ended_s, job.outcome, job.reason = event.t_s, FAILED, RESTARTED
        self.open_jobs.clear()
        self.intervals += [(name, since_s, event.t_s) for name, since_s in self.since_s.items() if event.t_s > since_s]
        self.since_s.clear()

    def _ask(self, line: int, event: Event) -> None:
        if event.job is None:
            self._fail(line, "job must be given for the event 'asked'")
        if event.job in self.jobs:
            self._fail(line, f"job '{event.job}' has a second event 'asked'")
        job = _Job(self._client(line, event), event.kind, event.round, event.t_s)
        self.jobs[event.job] = self.open_jobs[event.job] = job

    def _end(self, line: int, event: Event) -> None:
        name = event.job or ""
        job = self.jobs.get(name)
        if job is None:
            self._fail(line, f"job '{name}' ended without an event 'asked'")
        if event.client is not None and event.client != job.client:
            who = f"'{job.client}', which was asked, got '{event.client}'"
            self._fail(line, f"client of job '{event.job}' must be {who}")
        if job.outcome == ARRIVED or (job.outcome == FAILED and event.event == "failed"):
            self._fail(line, f"job '{event.job}' ended twice")
        if job.outcome == OPEN:  # a late reply to a job that the server had given up does not count
            del self.open_jobs[name]
            job.ended_s, job.outcome = event.t_s, ARRIVED if event.event == "arrived" else FAILED
            job.num_samples, job.reason = event.num_samples or 0, event.reason
            job.energy_j = math.nan if event.energy_j is None else event.energy_j
            self._split(line, event, job)

    def _split(self, line: int, event: Event, job: _Job) -> None:
        """Note how a job's time divides into download, computing and upload, as far as it is known."""
        marks = [job.asked_s, event.downloaded_s, event.trained_s, event.uploaded_s, event.t_s]
        known = [mark for mark in marks if mark is not None]
        if known != sorted(known):
            order = "asked <= downloaded_s <= trained_s <= uploaded_s <= t_s"
            self._fail(line, f"the times of job '{event.job}' must be in order: {order}")
        if event.compute_s is not None:
            job.compute_s = event.compute_s
        elif event.downloaded_s is not None and event.trained_s is not None:
            job.compute_s = event.trained_s - event.downloaded_s
        if job.compute_s > longest_s(event.t_s - job.asked_s):
            took = f"{event.t_s - job.asked_s:.6g} s"
            self._fail(line, f"compute_s must not exceed the {took} that job '{event.job}' took, got {job.compute_s:g}")

    def _client(self, line: int, event: Event) -> str:
        if event.client is None:
            self._fail(line, f"client must be given for the event '{event.event}'")
        self.names.add(event.client)
        return event.client

    def _fail(self, line: int, problem: str) -> NoReturn:
        raise InputError(f"{self.path} line {line}: {problem}")
