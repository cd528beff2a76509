"""Reads and validates the files of a run.

Files may have been edited since they were written, so the type and bounds of every value are checked here, and callers
need not check them again. An error names the file, the line and the field. Files of older versions may lack fields, and
those of newer versions may have additional ones.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from lesson.core.errors import InputError
from lesson.core.files import open_input, read_input
from lesson.learn.metric import ACCURACY, MAX_TARGETS, Metric, check_metric_name

MAX_LINE = 1 << 29
"""Maximum number of bytes in a line of metrics: enough for two numbers per client of the largest fleet."""
_CHUNK = 1 << 20
_HUGE = 1e300
"""Bound for numbers, so that sums of many of them are finite."""

Count = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Real = Annotated[float, Field(ge=-_HUGE, le=_HUGE, strict=True)]
NotNegative = Annotated[float, Field(ge=0, le=_HUGE, strict=True)]
Share = Annotated[float, Field(ge=0, le=1 + 1e-9, strict=True)]
Text = Annotated[str, Field(strict=True)]
Clients = Annotated[list[Count], Field(strict=True)]
MetricName = Annotated[str, Field(strict=True), AfterValidator(check_metric_name)]
ClassName = Annotated[str, Field(strict=True, max_length=200)]
MAX_METRICS = 100


class Shape(BaseModel):
    """Schema of a JSON object in a file. Objects are validated against it and used as they are."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Line(Shape):
    """One round in metrics.jsonl."""

    round: Annotated[int, Field(ge=1, lt=2**63, strict=True)]
    time_s: NotNegative
    uploads: Count
    bytes_up: Count
    bytes_down: Count
    energy_j: NotNegative | None
    staleness: NotNegative | None = None
    accuracy: Share = 0.0
    loss: Real = 0.0
    merged: Clients = []
    merged_staleness: Clients = []
    merged_started_s: list[NotNegative] = []
    merged_arrived_s: list[NotNegative] = []
    merged_expected_s: list[NotNegative] = []
    misses: Count = 0
    retiered: Count = 0
    lost: Count = 0
    rejected: Count = 0
    rejections: dict[Text, Clients] = {}
    excluded: Clients = []
    note: Text = ""
    global_loss: Real | None = None
    client_accuracy: list[Share | None] = []
    client_loss: list[Real | None] = []


class BriefSummary(Shape):
    """Fields that every run has, including those that were archived without their summary.json.

    The metric has its value and its mean over the last evaluations in fields with its own name, which are null for a
    run that diverged. Without the field `metric`, it is accuracy with the default targets.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
    may_lack_scores: ClassVar[bool] = True

    strategy: Text
    dataset: Text
    device: Text
    seed: Annotated[int, Field(ge=0, strict=True)]
    rounds: Count
    time_s: NotNegative
    metric: MetricName = ACCURACY.name
    higher_is_better: bool = True
    accuracy: Share | None = None
    accuracy_last10: Share | None = None
    metrics: Annotated[dict[MetricName, Real], Field(max_length=MAX_METRICS)] = {}
    uploads: Count
    energy_j: NotNegative | None
    notes: list[Text]
    time_to_s: Annotated[dict[Text, NotNegative | None], Field(max_length=MAX_TARGETS)]
    clock: Literal["wall", "virtual"] = "virtual"

    @model_validator(mode="after")
    def _scores_fit(self) -> Self:
        for key in self.time_to_s:
            _check_target(key)
        if "metric" not in self.model_fields_set:
            for target in (f"{target:g}" for target in ACCURACY.targets):
                if target not in self.time_to_s:
                    raise ValueError(f"time_to_s must have {target}")
        metric = Metric.of(self.model_dump(include={"higher_is_better", "time_to_s"}) | {"metric": self.metric})
        values = {**(self.model_extra or {}), "accuracy": self.accuracy, "accuracy_last10": self.accuracy_last10}
        for name in (metric.name, metric.last10):
            if name not in values or (values[name] is None and (metric.is_share or not self.may_lack_scores)):
                raise ValueError(f"{name} is missing")
            if values[name] is not None:
                _check_number(name, values[name])
        return self


class Summary(BriefSummary):
    """The content of summary.json."""

    may_lack_scores = False

    loss: Real | None
    bytes_up: Count
    bytes_down: Count
    wall_s: NotNegative
    wall_trainer: Text = ""
    rejected: Count = 0
    rejected_by: dict[Text, Count] = {}
    excluded: Clients = []
    misses: Count = 0
    retiered: Count = 0
    lost: Count = 0
    ended_early: Text = ""


class Promoted(Shape):
    """The client that is treated as meeting the deadline, and its actual latency."""

    client: Count
    latency_s: NotNegative


class Columns(Shape):
    """The clients in clients.json, one list per column."""

    number: Annotated[Clients, Field(min_length=1)]
    name: list[Text | Count]
    x_km: list[Real | None] | None
    y_km: list[Real | None] | None
    compute_s: list[NotNegative | None]
    upload_s: list[NotNegative | None]
    latency_s: list[NotNegative | None]
    compute_j: list[NotNegative | None] | None = None
    transmit_j: list[NotNegative | None] | None = None
    num_samples: list[Count] = []
    accuracy: list[Share | None] = []


class ClientsFile(Shape):
    """The content of clients.json; accuracies only if the task has classes."""

    num_clients: Count
    class_accuracy: list[Share | None] = []
    class_names: list[ClassName] = []
    promoted: Promoted | None
    clients: Columns


_MERGED = ("merged", "merged_staleness", "merged_started_s", "merged_arrived_s", "merged_expected_s")


def each_line(path: Path, metric: Metric = ACCURACY) -> Iterator[dict[str, Any]]:
    """Yield the validated lines of a metrics file, whose run has this metric; nothing if there is no such file."""
    if not os.path.lexists(path):
        return
    number, time_s = 0, 0.0
    remedy = "remove the folder and rerun"
    try:
        with open_input(path) as file:
            for number, content in enumerate(_lines(file), start=1):
                line = decode(content)
                Line.model_validate(line)
                if line["round"] != number:
                    raise ValueError(f"round must be {number}, got {line['round']}")
                if line["time_s"] < time_s:
                    raise ValueError(
                        f"time_s must be at least that of the previous line, {time_s}, got {line['time_s']}"
                    )
                time_s = line["time_s"]
                _check_lengths(line, _MERGED)
                if metric.name in line:
                    _check_number(metric.name, line[metric.name])
                yield line
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} line {max(number, 1)} is damaged ({reason_of(error)}); {remedy}") from None


def read_summary(path: Path, remedy: str) -> dict[str, Any]:
    """Return the validated summary."""
    summary: dict[str, Any] = _read(path, Summary.model_validate, remedy)
    return summary


def read_clients(path: Path) -> dict[str, Any]:
    """Return the validated clients of a run, as `clients_of` describes them."""

    def check(kept: Any) -> None:
        ClientsFile.model_validate(kept)
        columns = kept["clients"]
        _check_lengths(columns, tuple(name for name, values in columns.items() if isinstance(values, list)))
        if len(set(columns["number"])) < len(columns["number"]) or max(columns["number"]) >= kept["num_clients"]:
            raise ValueError("clients.number must be distinct numbers below num_clients")
        if bool(kept.get("class_accuracy")) != bool(columns.get("accuracy")):
            raise ValueError("class_accuracy and clients.accuracy must both be given, or neither")
        if kept.get("class_names"):
            _check_lengths(kept, ("class_accuracy", "class_names"))

    kept: dict[str, Any] = _read(path, check, "remove it or restore a copy")
    return kept


def read_json(path: Path, kind: TypeAdapter[Any], remedy: str) -> Any:
    """Return the content of a JSON file, validated by `kind`."""
    return _read(path, kind.validate_python, f"restore a copy or {remedy}")


def _read(path: Path, check: Callable[[Any], object], remedy: str) -> Any:
    try:
        kept = decode(read_input(path))
        check(kept)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({reason_of(error)}); {remedy}") from None
    return kept


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; raise ValueError for a line that is too long or binary, before it fills the memory."""
    while content := file.readline(_CHUNK):
        while not content.endswith(b"\n") and (more := file.readline(_CHUNK)):
            content += more
            if len(content) > MAX_LINE:
                raise ValueError(f"a line must have at most {MAX_LINE} bytes")
            if b"\0" in more:
                raise ValueError("it contains NUL bytes")
        yield content


def _reject(constant: str) -> Any:
    raise ValueError(f"{constant} is not valid JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject)


def decode(content: bytes) -> Any:
    """Decode strict JSON, without NaN and Infinity."""
    return _DECODER.decode(content.decode("utf-8"))


def _check_lengths(columns: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raise ValueError unless those of these columns that exist have the same length."""
    lengths = {name: len(columns[name]) for name in names if name in columns}
    for name, length in lengths.items():
        first, wanted = next(iter(lengths.items()))
        if length != wanted:
            raise ValueError(f"{name} must have {wanted} values, as many as {first}, got {length}")


def _check_number(name: str, value: Any) -> None:
    """Raise ValueError unless the value of a metric is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _HUGE:
        got = repr(value)
        raise ValueError(f"{name} must be a finite number, got {got if len(got) <= 40 else f'{got[:39]}…'}")


def _check_target(key: str) -> None:
    """Raise ValueError unless a key is a target in the format of summaries."""
    try:
        is_target = math.isfinite(float(key)) and f"{float(key):g}" == key
    except ValueError:
        is_target = False
    if not is_target:
        raise ValueError(f"time_to_s must have numbers as keys, got {key[:40]!r}")


def reason_of(error: Exception) -> str:
    """Return what is wrong, in a few words."""
    if not isinstance(error, ValidationError):
        return "not JSON in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['ctx']['error']}" if where else str(first["ctx"]["error"])
    if not first["loc"]:
        return "it must be a JSON object"
    # The location also names branches of a union; keep only what is in the file.
    field = ".".join(str(part) for part in first["loc"] if not isinstance(part, str) or part.isidentifier())
    if first["type"] == "missing":
        return f"{field} is missing"
    got = repr(first["input"])
    return f"{field}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {got if len(got) <= 40 else f'{got[:39]}…'}"
