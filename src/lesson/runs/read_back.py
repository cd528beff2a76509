"""Reads the files of a run, which may be truncated, edited by mistake or written by another version.

An error names the file, the line and the field.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Required, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from lesson.core.errors import InputError
from lesson.core.validation import shown, wanted_by
from lesson.learn.metric import ACCURACY, Metric


class Shape(BaseModel):
    """Schema of a JSON object in a file. Objects are validated against it and used as they are."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Line(TypedDict, total=False):
    """One round in metrics.jsonl."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)  # type: ignore[misc]

    round: Required[int]
    time_s: Required[float]
    uploads: Required[int]
    bytes_up: Required[int]
    bytes_down: Required[int]
    energy_j: Required[float | None]
    staleness: Required[float | None]
    accuracy: float
    loss: float
    merged: list[int]
    merged_staleness: list[int]
    merged_started_s: list[float]
    merged_arrived_s: list[float]
    merged_expected_s: list[float]
    misses: int
    retiered: int
    lost: int
    rejected: int
    rejections: dict[str, list[int]]
    excluded: list[int]
    exhausted: list[int]
    note: str
    global_loss: float | None
    client_accuracy: list[float | None]
    client_loss: list[float | None]


_LINE: TypeAdapter[Any] = TypeAdapter(Line)


class Summary(Shape):
    """The content of summary.json.

    The metric has its value and its mean over the last evaluations in fields with its own name.
    """

    model_config = ConfigDict(extra="allow")

    strategy: str
    dataset: str
    device: str
    seed: int
    rounds: int
    time_s: float
    metric: str = ACCURACY.name
    higher_is_better: bool = True
    metrics: dict[str, float] = {}
    uploads: int
    energy_j: float | None
    notes: list[str]
    time_to_s: dict[str, float | None]
    clock: Literal["wall", "virtual"] = "virtual"
    loss: float | None
    bytes_up: int
    bytes_down: int
    wall_s: float
    wall_trainer: str
    rejected: int
    rejected_by: dict[str, int]
    excluded: list[int]
    exhausted: list[int] = []
    misses: int = 0
    retiered: int = 0
    lost: int = 0
    ended_early: str

    @model_validator(mode="after")
    def _has_scores(self) -> Self:
        metric = Metric.of({name: getattr(self, name) for name in ("metric", "higher_is_better", "time_to_s")})
        for name in (metric.name, metric.last10):
            if name not in (self.model_extra or {}):
                raise ValueError(f"{name} is missing")
        return self


class ClientsFile(Shape):
    """The content of clients.json: the clients as one list per column; accuracies only if the task has classes."""

    num_clients: int
    class_accuracy: list[float | None] = []
    class_names: list[str] = []
    promoted: dict[str, float] | None
    clients: dict[str, list[float | str | None] | None]


def each_line(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the validated lines of a metrics file; nothing if there is no such file."""
    if not path.exists():
        return
    number = 1
    try:
        with path.open("rb") as file:
            for number, content in enumerate(file, start=1):
                line: dict[str, Any] = _LINE.validate_json(content)
                if line["round"] != number:
                    raise ValueError(f"round must be {number}, got {line['round']}")
                yield line
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} line {number} is damaged ({reason_of(error)}); remove the folder and rerun") from None


def read_json(path: Path, kind: TypeAdapter[Any], remedy: str, missing: Any) -> Any:
    """Return the content of a JSON file, validated by `kind`; `missing` if there is no such file."""
    try:
        content = json.loads(path.read_bytes())
        kind.validate_python(content)
    except FileNotFoundError:
        return missing
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; {remedy}") from None
    except ValueError as error:
        raise InputError(f"{path} is damaged ({reason_of(error)}); {remedy}") from None
    return content


def reason_of(error: Exception) -> str:
    """Return what is wrong, in a few words."""
    if not isinstance(error, ValidationError):
        return "not JSON in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"])) or "it"
    if first["type"] == "missing":
        return f"{field} is missing"
    if first["type"] == "json_invalid":
        return "not JSON: " + str(first["ctx"]["error"]).partition(" at line")[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    return f"{field} must be {wanted_by(first)}, got {shown(first['input'])}"
