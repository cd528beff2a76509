"""The archived results of a run: settings, versions and evaluations, one line of JSON per run.

Figures and claims are computed from these lines only, so they can be reproduced without training.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from lesson.core.errors import InputError
from lesson.core.files import read_input, write_whole
from lesson.core.toml import read_toml
from lesson.experiments.naming import run_name, series_name
from lesson.experiments.study import RUNS
from lesson.fleet.fleet import draw_fleet
from lesson.fleet.tiers import assign_tiers
from lesson.runs.folder import RunFolder
from lesson.runs.read_back import Shape
from lesson.runs.summary import read_metrics, with_final_score
from lesson.settings.loading import load_settings
from lesson.settings.settings import Settings

CURVE = ("round", "time_s", "accuracy", "uploads")
ENERGY = "energy_j"
MAX_BYTES = 1 << 30
GUESSED = 0.1
"""Accuracy of guessing among ten classes; a model that has diverged is given this accuracy."""


class _Line(Shape):
    """Schema of a line of the file."""

    stopped: str
    curve: dict[str, list[float | None]]
    clients: dict[str, list[float | None]]
    format: int
    settings: dict[str, Any]
    versions: dict[str, str]


@dataclass(frozen=True, eq=False)
class Result:
    """A run, as far as figures and claims need it."""

    FORMAT: ClassVar[int] = 2
    """Format of an archived line; `tools/migrate_results.py` migrates archives of version 0.1."""
    settings: Settings
    versions: Mapping[str, str]
    stopped: str
    """Why the run stopped early; empty if it reached its end."""
    curve: pd.DataFrame
    """One row per evaluation: round, time_s, accuracy, uploads so far and, if known, energy_j so far."""
    clients: pd.DataFrame
    """One row per evaluation on the clients' own data: round, time_s, global_loss of Eq. (1), and the mean accuracy of
    the clients in tier 1 and of all others, each on its own data."""

    @property
    def seed(self) -> int:
        return self.settings.run.seed

    def up_to(self, rounds: int | None = None) -> pd.DataFrame:
        """Return the curve up to a number of rounds."""
        return self.curve if rounds is None else self.curve[self.curve["round"] <= rounds]

    @classmethod
    def of_folder(cls, path: Path | str, stopped: str = "") -> "Result":
        """Return the result of a run's folder; `stopped` says why it stopped early."""
        path = Path(path)
        folder = RunFolder(path)
        settings = load_settings(str(folder.config))
        _, sections = read_toml(folder.config, "a run writes it")
        versions = sections.get("versions", {})
        lines: Iterable[dict[str, Any]] = read_metrics(folder.metrics)
        if (summary := folder.finished()) is not None:
            lines = with_final_score(lines, {"accuracy": summary["accuracy"]})
        metrics = pd.DataFrame(lines)
        return cls(settings, versions, stopped, _curve(metrics), _clients(metrics, settings))

    def to_json(self) -> str:
        """Return one line of strict JSON."""
        values = {
            "format": self.FORMAT,
            "series": series_name(self.settings),
            "seed": self.seed,
            "stopped": self.stopped,
            "curve": self.curve.to_dict("list"),
            "clients": self.clients.to_dict("list"),
            "settings": jsonable(self.settings.to_sections()),
            "versions": dict(self.versions),
        }
        return json.dumps(values, allow_nan=False, ensure_ascii=False)

    @classmethod
    def of_json(cls, line: str) -> "Result":
        """Return the result that `to_json` wrote."""
        values = json.loads(line)
        _Line.model_validate(values)
        if values["format"] != cls.FORMAT:
            raise ValueError(f"format must be {cls.FORMAT}, got {values['format']}: another version of lesson wrote it")
        settings = Settings(**from_jsonable(values["settings"]))
        curve = pd.DataFrame(values["curve"]).astype({"time_s": float, "accuracy": float})
        curve = curve[[*CURVE, *({ENERGY} & set(curve))]]
        frames = curve, pd.DataFrame(values["clients"])
        return cls(settings, values["versions"], values["stopped"], *frames)


class Results(Mapping[str, tuple[Result, ...]]):
    """Results by series, ordered by seed."""

    def __init__(self, results: Mapping[str, Result]) -> None:
        self.runs = dict(results)
        series: dict[str, list[Result]] = {}
        for result in sorted(results.values(), key=lambda result: result.seed):
            series.setdefault(series_name(result.settings), []).append(result)
        self._series = {name: tuple(runs) for name, runs in series.items()}

    def __getitem__(self, series: str) -> tuple[Result, ...]:
        return self._series[series]

    def __iter__(self) -> Iterator[str]:
        return iter(self._series)

    def __len__(self) -> int:
        return len(self._series)

    def of_seeds(self, count: int) -> "Results":
        """Return the results with seeds below `count`, so that all series have the same seeds."""
        return Results({name: run for name, run in self.runs.items() if run.seed < count})

    @classmethod
    def load(cls, folder: Path | str) -> "Results":
        """Load the results of a folder; none if it has no such file."""
        folder = Path(folder)
        path, results = folder / RUNS, list[Result]()
        try:
            for line in read_input(path, MAX_BYTES).decode().split("\n") if os.path.lexists(path) else []:
                results += [Result.of_json(line)] if line else []
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, OSError) as error:
            kept = "; or remove it, the folders in runs/ are kept" if (folder / "runs").exists() else ""
            where = f"line {len(results) + 1}: {error}"
            raise InputError(f"{path} is damaged ({where}); put back a copy{kept}") from None
        return cls({run_name(result.settings): result for result in results})

    def save(self, folder: Path | str) -> None:
        """Write all results to the folder's file, atomically."""
        folder = Path(folder)
        lines = [self.runs[name].to_json() for name in sorted(self.runs)]
        write_whole(folder / RUNS, "".join(f"{line}\n" for line in lines).encode())


def _curve(metrics: pd.DataFrame) -> pd.DataFrame:
    if "accuracy" not in metrics:
        return pd.DataFrame(columns=list(CURVE))
    columns = [*CURVE, *([ENERGY] if metrics[ENERGY].notna().all() else [])]
    totals = metrics[[*columns[len(CURVE) :], "uploads"]].cumsum()
    scored = metrics.assign(**totals).dropna(subset="accuracy")[columns]
    return scored.round({"time_s": 3, "accuracy": 4, ENERGY: 3}).reset_index(drop=True)


def _clients(metrics: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    if "client_loss" not in metrics:
        return pd.DataFrame(columns=["round", "time_s", "global_loss"])
    scored = metrics.dropna(subset="client_loss")
    accuracy = np.array(scored["client_accuracy"].to_list(), dtype=float)
    deadline_s = settings.strategy.deadline_s
    fast = assign_tiers(draw_fleet(settings).at_deadline(deadline_s).latency_s, deadline_s) == 1
    groups = {"accuracy_tier1": fast, "accuracy_others": ~fast}
    means = {name: np.nanmean(accuracy[:, group], axis=1) for name, group in groups.items() if group.any()}
    frame = scored[["round", "time_s", "global_loss"]].assign(**means)
    return frame.round({"time_s": 3, "global_loss": 5} | dict.fromkeys(means, 4)).reset_index(drop=True)


def jsonable(value: Any) -> Any:
    """Return a value as strict JSON, with infinity as text."""
    if isinstance(value, dict):
        return {key: jsonable(one) for key, one in value.items()}
    return "inf" if value == math.inf else value


def from_jsonable(value: Any) -> Any:
    """Return the value that `jsonable` was given."""
    if isinstance(value, dict):
        return {key: from_jsonable(one) for key, one in value.items()}
    return math.inf if value == "inf" else value
