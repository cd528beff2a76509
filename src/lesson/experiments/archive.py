"""Archives of runs: runs.jsonl.gz, one line of strict JSON per run with its settings, summary and evaluations.

Figures, tables and claims are computed from these lines only, so they can be redrawn without training.
"""

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from lesson.core.errors import InputError
from lesson.core.files import write_whole
from lesson.core.version import check_format
from lesson.experiments.run import Archived, Run, curve_columns
from lesson.learn.metric import Metric
from lesson.runs.read_back import reason_of
from lesson.settings.settings import Settings

ARCHIVE = "runs.jsonl.gz"
FORMAT = 4


def read_archive(path: Path) -> list[Run]:
    """Return the runs of an archive; none if there is no such file."""
    runs: list[Run] = []
    found: Any = FORMAT
    try:
        with gzip.open(path) if path.exists() else io.BytesIO() as file:
            for line in file:
                values = json.loads(line)
                if (found := values["format"]) != FORMAT:
                    break
                runs.append(_parsed(values))
    except (OSError, EOFError, LookupError, TypeError, ValueError, zlib.error) as error:
        remedy = "restore a copy, or delete it to use only the run folders"
        raise InputError(f"{path} is damaged (line {len(runs) + 1}: {reason_of(error)}); {remedy}") from None
    check_format(path, found, FORMAT)
    return runs


def write_archive(path: Path, runs: Iterable[Run]) -> None:
    """Write an archive, ordered by name, atomically; the same runs give the same bytes."""
    lines = [_line(run) for run in sorted(runs, key=lambda run: run.name)]
    write_whole(path, gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def _line(run: Run) -> str:
    summary = {name: _known(one) for name, one in run.summary.items() if not name.startswith("wall_")}
    values = {
        "format": FORMAT,
        "name": run.name,
        "diverged": run.diverged,
        "summary": summary,
        "curve": _columns(run.curve),
        "clients": _columns(run.clients),
        "settings": _with_infinity(run.settings.to_sections(), math.inf, "inf"),
        "versions": run.versions,
    }
    return json.dumps(values, allow_nan=False, ensure_ascii=False)


def _parsed(values: dict[str, Any]) -> Run:
    settings = Settings(**_with_infinity(values["settings"], "inf", math.inf))
    summary, metric = values["summary"], Metric.of(values["summary"])
    summary |= {name: math.nan for name in (metric.name, metric.last10) if summary[name] is None}
    curve = pd.DataFrame(values["curve"])
    curve = curve[[name for name in curve_columns(metric) if name in curve]]
    curve = curve.astype({"time_s": float, metric.name: float})
    archived = Archived(values["name"], values["versions"], curve, pd.DataFrame(values["clients"]))
    return Run(None, settings, summary, values["diverged"], archived=archived)


def _columns(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Return the columns of a frame as lists, with None for unknown values."""
    return {str(name): [_known(one) for one in column] for name, column in frame.to_dict("list").items()}


def _known(value: Any) -> Any:
    """Return a value, or None for NaN, which strict JSON does not have."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _with_infinity(value: Any, before: Any, after: Any) -> Any:
    """Replace infinity, which strict JSON does not have, by a text, or the text by infinity."""
    if isinstance(value, dict):
        return {key: _with_infinity(one, before, after) for key, one in value.items()}
    return after if value == before else value
