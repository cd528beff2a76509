"""A finished run, read from its folder or from a line of an archive."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from lesson.core.arrays import FloatArray
from lesson.core.errors import InputError
from lesson.core.toml import read_toml
from lesson.experiments.naming import run_name
from lesson.fleet.fleet import draw_fleet
from lesson.fleet.tiers import assign_tiers
from lesson.learn.metric import ACCURACY, Metric
from lesson.runs.folder import RunFolder
from lesson.runs.read_back import each_line
from lesson.runs.summary import num_last, with_final_score
from lesson.settings.loading import load_settings
from lesson.settings.settings import Settings

if TYPE_CHECKING:
    from lesson.report.files import ShownFigure


TOTALS = ("uploads", "bytes_up", "energy_j")
"""Columns of a curve with cumulative costs."""


def curve_columns(metric: Metric) -> tuple[str, ...]:
    """Return the columns of a curve; the last three are totals so far. Loss, bytes and energy may be missing."""
    return ("round", "time_s", metric.name, "loss", *TOTALS)


@dataclass(frozen=True, eq=False)
class Run:
    """A run that has finished or diverged, as returned by `lesson.run` and `lesson.load`.

    Attributes:
        path: Its folder; None if only the archived line is left.
        settings: Its settings.
        summary: The content of summary.json, such as `summary["accuracy"]`.
        diverged: Why training diverged; empty for a run that finished.
        labels: Labels besides its settings, such as the entry in a tuned comparison.
        archived: The content of its line in an archive; None for a run that has a folder.
    """

    path: Path | None
    settings: Settings
    summary: dict[str, Any]
    diverged: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict)
    archived: "Archived | None" = field(default=None, repr=False)

    @classmethod
    def load(cls, path: Path | str) -> "Run":
        """Load the finished run of a folder; raise InputError if there is none."""
        path = Path(path)
        folder = RunFolder(path)
        settings = load_settings(str(folder.config))
        if (summary := folder.finished()) is None:
            raise InputError(f"{path} holds no finished run; resume it with the settings in {folder.config}")
        return cls(path, settings, summary)

    @classmethod
    def load_diverged(cls, path: Path, reason: str, metric: Metric = ACCURACY) -> "Run":
        """Load the folder of a run that diverged for this reason."""
        settings = load_settings(str(RunFolder(path).config))
        curve = curve_of(each_line(RunFolder(path).metrics), metric)
        return cls(path, settings, summary_of(settings, curve, reason, metric), reason)

    @property
    def name(self) -> str:
        """The name of its folder or, for an archived run, of its line."""
        if self.archived is not None:
            return self.archived.name
        return self.path.name if self.path is not None else run_name(self.settings)

    @cached_property
    def sections(self) -> dict[str, Any]:
        """Its settings as tables of plain values by section."""
        return self.settings.to_sections()

    @property
    def seed(self) -> int:
        return self.settings.run.seed

    @cached_property
    def metric(self) -> Metric:
        """The metric by which the run is compared with others."""
        return Metric.of(self.summary)

    @cached_property
    def curve(self) -> pd.DataFrame:
        """One row per evaluation of the model, with the columns in `curve_columns`."""
        return self.archived.curve if self.archived is not None else curve_of(self.each_line(), self.metric)

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per evaluation on the clients' own data: round, time_s, global_loss of Eq. (1), and the mean accuracy
        of the clients in tier 1 and of all others, each on its own data."""
        if self.archived is not None:
            return self.archived.clients
        if math.isinf(self.settings.run.client_scores_every_s):  # reading all lines takes a second per 100,000 rounds
            return clients_of([], self.settings)
        measured = self.settings.fleet.latencies  # the file may have changed or be on another machine
        return clients_of(self.each_line(), self.settings, self._latencies_s() if measured else None)

    @cached_property
    def versions(self) -> dict[str, str]:
        """Versions of Python and libraries, and the hardware, with which the run was executed."""
        if self.archived is not None:
            return self.archived.versions
        assert self.path is not None, "a run has a folder or a line"
        versions: dict[str, str] = read_toml(RunFolder(self.path).config, "a run writes it").get("versions", {})
        return versions

    def up_to(self, rounds: int | None = None) -> pd.DataFrame:
        """Return the curve up to a number of rounds."""
        return self.curve if rounds is None else self.curve[self.curve["round"] <= rounds]

    @cached_property
    def lines(self) -> Sequence[dict[str, Any]]:
        """The lines of metrics.jsonl; for an archived run, one line per evaluation."""
        return list(self.each_line())

    def each_line(self) -> Iterator[dict[str, Any]]:
        """Yield `lines` without keeping them: those of a study may not fit into memory."""
        if self.path is None:
            return _lines_of(self.curve)
        lines = each_line(RunFolder(self.path).metrics)
        if self.diverged:
            return lines
        scores = (self.metric.name, "loss")
        final = {name: self.summary[name] for name in scores if self.summary[name] is not None}
        return with_final_score(lines, final | self.summary.get("metrics", {}))

    def read_clients(self) -> dict[str, Any]:
        """Return the content of clients.json; empty for an archived run and for a folder without this file."""
        return {} if self.path is None else RunFolder(self.path).read_clients()

    def _latencies_s(self) -> FloatArray:
        """Return the latency of each client in clients.json, shape (num_clients,); inf where it is unknown."""
        latency_s, kept = np.full(self.settings.fleet.num_clients, np.inf), self.read_clients().get("clients", {})
        for client, seconds in zip(kept.get("number", []), kept.get("latency_s", []), strict=True):
            latency_s[client] = np.inf if seconds is None else seconds
        return latency_s

    def to_frame(self) -> pd.DataFrame:
        """Return one row per round, the last one with the score of the final model.

        Only the evaluated rounds of an archived run are known.
        """
        return pd.DataFrame(self.lines)

    def plot(self, by: Literal["time", "round", "uploads", "energy"] = "time") -> "ShownFigure":
        """Draw the metric over simulated time, rounds, total uploads or total energy."""
        from lesson.experiments.study import Study  # it imports this module

        return Study([self]).plot(by)

    def __repr__(self) -> str:
        from lesson.report.words import final_score

        told = self.summary
        return (
            f"Run({told['strategy']} on {told['dataset']}, seed {told['seed']}: {final_score(told)} after "
            f"{told['rounds']} rounds, {told['time_s']:g} s; {self.path or 'archived'})"
        )

    def _repr_html_(self) -> str:
        from lesson.experiments.study import Study  # it imports this module

        return Study([self])._repr_html_()


@dataclass(frozen=True, eq=False)
class Archived:
    """What an archive keeps of a run besides its settings and its summary."""

    name: str
    versions: dict[str, str]
    curve: pd.DataFrame
    clients: pd.DataFrame


def curve_of(lines: Iterable[dict[str, Any]], metric: Metric = ACCURACY) -> pd.DataFrame:
    """Return one row per evaluation: round, time, scores, uploads and joules so far, rounded as in an archive."""
    names, evaluated = curve_columns(metric), list[dict[str, Any]]()
    totals: dict[str, float | None] = dict.fromkeys(TOTALS, 0)
    for line in lines:
        for name, total in totals.items():
            spent = line.get(name)
            totals[name] = None if total is None or spent is None else total + spent
        if line.get(metric.name) is not None:
            evaluated.append({name: line[name] for name in names if name in line} | totals)
    if not evaluated:
        return pd.DataFrame(columns=list(names))
    scored = pd.DataFrame(evaluated)
    scored = scored[[name for name in names if name in scored and (name not in TOTALS or totals[name] is not None)]]
    scored[metric.name] = metric.rounded(scored[metric.name])
    return scored.round({"time_s": 3, "loss": 5, "energy_j": 3})


def clients_of(
    lines: Iterable[dict[str, Any]], settings: Settings, latency_s: FloatArray | None = None
) -> pd.DataFrame:
    """Return the evaluations on the clients' own data; see `Run.clients`.

    `latency_s` has the latency of each client; by default, the fleet of the settings is drawn.
    """
    scored = pd.DataFrame([line for line in lines if "client_loss" in line])
    if not len(scored):
        return pd.DataFrame(columns=["round", "time_s", "global_loss"])
    means: dict[str, FloatArray] = {}
    if "client_accuracy" in scored:  # only tasks with classes have it
        accuracy = np.array(scored["client_accuracy"].to_list(), dtype=float)
        deadline_s = settings.strategy.deadline_s
        latency_s = draw_fleet(settings).at_deadline(deadline_s).latency_s if latency_s is None else latency_s
        fast = assign_tiers(latency_s, deadline_s) == 1
        groups = {"accuracy_tier1": fast, "accuracy_others": ~fast}
        means = {name: np.nanmean(accuracy[:, group], axis=1) for name, group in groups.items() if group.any()}
    frame = scored[["round", "time_s", "global_loss"]].assign(**means)
    return frame.round({"time_s": 3, "global_loss": 5} | dict.fromkeys(means, 4)).reset_index(drop=True)


def summary_of(settings: Settings, curve: pd.DataFrame, diverged: str, metric: Metric = ACCURACY) -> dict[str, Any]:
    """Return the part of a summary that can be computed from a curve, for runs without a summary.json.

    A run that diverged has the accuracy of guessing, or NaN for other metrics; targets that it reached before count.
    """
    scores = curve[:0] if diverged else curve
    values = scores[metric.name]
    last = values.tail(num_last(len(values))).mean() if len(scores) else metric.of_diverged
    total = curve.iloc[-1] if len(curve) else {"round": 0, "time_s": 0.0, "uploads": 0}
    return {
        "strategy": settings.strategy.name,
        "dataset": settings.data.dataset,
        "seed": settings.run.seed,
        "device": settings.run.device,
        "rounds": int(total["round"]),
        "time_s": float(total["time_s"]),
        **metric.fields,
        metric.name: float(values.iloc[-1]) if len(scores) else metric.of_diverged,
        metric.last10: float(last),
        "uploads": int(total["uploads"]),
        "energy_j": float(total["energy_j"]) if "energy_j" in total else None,
        "ended_early": diverged,
        "notes": [diverged] if diverged else [],
        "time_to_s": metric.times_to(curve[metric.name], curve["time_s"]),
    }


def _lines_of(curve: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of a curve as lines of metrics, with what was spent since the previous row."""
    spent = {name: curve[name].diff().fillna(curve[name]) for name in TOTALS if name in curve}
    for row in curve.assign(**spent).to_dict("records"):
        yield {"bytes_up": None, "energy_j": None} | {str(name): value for name, value in row.items() if value == value}
