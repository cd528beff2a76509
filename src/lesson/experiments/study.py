"""Studies: finished runs of several strategies or settings over several seeds, and `compare`, which executes them."""

import contextlib
import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from lesson.core.errors import InputError, unknown
from lesson.core.files import write_whole
from lesson.experiments.engines import Event, LocalEngine
from lesson.experiments.engines.trial import execute_trial
from lesson.learn.data import Dataset
from lesson.learn.data.dataset import NAMES
from lesson.learn.models import ModelFactory
from lesson.runs.folder import RunFolder
from lesson.runs.summary import TARGETS, VARYING_COUNTS, read_metrics, with_final_score
from lesson.runs.trackers import Tracker
from lesson.settings.loading import load_settings
from lesson.settings.settings import Settings
from lesson.strategies import make_strategy, options_of

if TYPE_CHECKING:
    from lesson.report.files import ShownFigure

FIGURES = ("accuracy_last10", "uploads", "bytes_up", "energy_j")
TIMES = tuple(f"time_to_{target:g}" for target in TARGETS)
# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; beyond, expanded from the normal quantile.
_STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_Z = 1.959964

Report = Callable[[str, dict[str, Any]], None]
MIN_SEEDS = 3
"""Minimum number of seeds for a confidence interval, and for naming a winner."""
COMPARED, FAILURES = "table.json", "failures.json"
"""Files in the folder of a comparison or a sweep that has ended; the second only if runs failed."""
RUNS, RULES, SCALE = "runs.jsonl", "rules.json", "scale.json"
"""Files in folders of a contest or of the paper; the second only in a contest, the third only for the paper."""


@dataclass(frozen=True)
class Run:
    """A finished run, read from its folder."""

    path: Path
    settings: Settings
    summary: dict[str, Any]

    @classmethod
    def load(cls, path: Path | str) -> "Run":
        """Load the finished run of a folder; raise InputError if there is none."""
        path = Path(path)
        folder = RunFolder(path)
        if (summary := folder.finished()) is None:
            command = f"lesson run --scenario {folder.config} --out {path} --resume"
            raise InputError(f"{path} holds no finished run; resume one with '{command}'")
        return cls(path, load_settings(str(folder.config)), summary)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per round; the last row has the score of the final model."""
        final = {name: self.summary[name] for name in ("accuracy", "loss")}
        return pd.DataFrame(with_final_score(read_metrics(RunFolder(self.path).metrics), final))

    def plot(self, by: Literal["time", "round"] = "time") -> "ShownFigure":
        """Draw accuracy over simulated time or over rounds."""
        return Study([self]).plot(by)

    def __repr__(self) -> str:
        told = self.summary
        return (
            f"Run({told['strategy']} on {told['dataset']}, seed {told['seed']}: accuracy {told['accuracy']:.4f} after "
            f"{told['rounds']} rounds, {told['time_s']:g} s; {self.path})"
        )

    def _repr_html_(self) -> str:
        from lesson.report.study.notebook import run_card  # it imports this module

        return run_card(self)


@dataclass(frozen=True)
class Study:
    """Finished runs, labeled by what varies besides the seed: the strategy, or settings as section.key."""

    runs: Sequence[Run]
    by: tuple[str, ...] = ("strategy",)
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why runs are missing, by the names of their folders."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row per run: its labels, seed and summary."""
        rows = []
        for run in self.runs:
            times = {f"time_to_{target}": seconds for target, seconds in run.summary["time_to_s"].items()}
            kept = {name: value for name, value in run.summary.items() if name not in ("time_to_s", "notes")}
            rows.append(self._labels(run) | kept | times)
        return pd.DataFrame(rows)

    def curves(self) -> pd.DataFrame:
        """Return one row per evaluation of every run: labels, seed, round, time, scores, uploads and joules so far."""
        so_far = ["uploads", "energy_j"]
        columns = [*self.by, "seed", "round", "time_s", "accuracy", "loss", *so_far]
        frames = []
        for run in self.runs:
            if "accuracy" in (frame := run.to_frame()):
                frame[so_far] = frame[so_far].astype(float).cumsum()
                scores = frame.dropna(subset="accuracy")
                labels = self._labels(run) | {"seed": run.summary["seed"]}
                frames.append(scores.assign(**{name: [value] * len(scores) for name, value in labels.items()}))
        return pd.concat(frames)[columns].reset_index(drop=True) if frames else pd.DataFrame(columns=columns)

    def table(self) -> pd.DataFrame:
        """Return one row per strategy, or per combination of labels, with the mean of each figure over seeds.

        NAME_min and NAME_max are its extremes, NAME_ci95 half its 95 % interval (from three seeds on), and
        time_to_TARGET_seeds the number of seeds that reached the target.
        """
        rows = [dict(zip(self.by, labels, strict=True)) | self._means(runs) for labels, runs in self.groups().items()]
        return pd.DataFrame(rows, columns=None if rows else list(self.by)).set_index(list(self.by))

    def _means(self, runs: Sequence[Run]) -> dict[str, float]:
        frame = Study(runs, self.by).to_frame()
        return means(frame, [*FIGURES, *(name for name in ("rejected", *VARYING_COUNTS) if name in frame)], TIMES)

    def failures_by_strategy(self) -> dict[str, dict[str, str]]:
        """Return the failures of a comparison by strategy, or by its folder name if all runs of a strategy failed."""
        names = {name.replace(":", "."): name for name in (run.summary["strategy"] for run in self.runs)}
        found: dict[str, dict[str, str]] = {}
        for folder, reason in self.failures.items():
            said = folder.rpartition("-seed")[0]
            found.setdefault(names.get(said, said), {})[folder] = reason
        return found

    def groups(self) -> dict[tuple[Any, ...], list[Run]]:
        """Return the runs that differ only in their seed, by their labels."""
        groups: dict[tuple[Any, ...], list[Run]] = {}
        for run in self.runs:
            groups.setdefault(tuple(self._labels(run).values()), []).append(run)
        return groups

    def plot(self, by: Literal["time", "round"] = "time") -> "ShownFigure":
        """Draw accuracy over simulated time or over rounds: the mean over seeds, with 95 % bands, for each label."""
        from lesson.report.study.accuracy_figure import draw_accuracy  # it imports this module

        return draw_accuracy(self, by)

    def __repr__(self) -> str:
        seeds = {run.summary["seed"] for run in self.runs}
        return f"Study({len(self.runs)} runs, {len(seeds)} seeds, by {', '.join(self.by)})"

    def _repr_html_(self) -> str:
        from lesson.report.study.notebook import study_card  # it imports this module

        return study_card(self)

    def _labels(self, run: Run) -> dict[str, Any]:
        """Return the values that distinguish a run from others."""
        if self.by == ("strategy",):
            return {"strategy": run.summary["strategy"]}
        sections = run.settings.to_sections()
        return {key: value_at(sections, key) for key in self.by}


def value_at(sections: Mapping[str, Mapping[str, Any]], key: str) -> Any:
    """Return the value of section.key, with tuples for lists and tables; None if it is not set."""
    section, _, name = key.partition(".")
    return hashable(sections[section].get(name))


def hashable(value: Any) -> Any:
    """Return a setting's value with tuples for lists and tables, for use as a key."""
    if isinstance(value, dict):
        return tuple((name, hashable(one)) for name, one in value.items())
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value


def means(runs: pd.DataFrame, names: Sequence[str], times: Sequence[str]) -> dict[str, float]:
    """Return mean, extremes and half the 95 % interval of each figure of runs that differ only in their seed.

    The interval is NaN for fewer than three runs, as it would be uselessly wide. For times to a target, also return how
    many runs reach it; the mean is NaN unless all do.
    """
    figures: dict[str, float] = {"seeds": len(runs)}
    for name in (*names, *times):
        values = runs[name].astype(float)
        reached = values.notna().all()
        figures[name] = float(values.mean()) if reached else math.nan
        enough = reached and len(runs) >= MIN_SEEDS
        figures[f"{name}_ci95"] = half_interval(values.to_numpy()) if enough else math.nan
        figures[f"{name}_min"], figures[f"{name}_max"] = float(values.min()), float(values.max())
        if name in times:
            figures[f"{name}_seeds"] = int(values.notna().sum())
    return figures


def half_interval(values: np.ndarray) -> float:
    """Return half the 95 % confidence interval of a mean by Student's t; NaN for a single value."""
    return float(half_intervals(np.asarray(values, dtype=float)[:, None])[0])


def half_intervals(values: np.ndarray) -> np.ndarray:
    """Return `half_interval` of each column."""
    if len(values) < 2:
        return np.full(values.shape[1], math.nan)
    degrees = len(values) - 1
    expanded = _Z + (_Z**3 + _Z) / (4 * degrees) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * degrees**2)
    quantile = _STUDENT_T[degrees - 1] if degrees <= len(_STUDENT_T) else expanded
    return np.asarray(quantile * np.std(values, ddof=1, axis=0) / math.sqrt(len(values)))


def compare(
    settings: Settings,
    strategies: Sequence[str],
    num_seeds: int,
    out: Path | str,
    *,
    resume: bool = False,
    num_processes: int = 1,
    data_dir: Path | str | None = None,
    report: Report | None = None,
    trackers: Sequence[Tracker] = (),
    dataset: Dataset | None = None,
    model: ModelFactory | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Study:
    """Execute strategies × seeds in subfolders of `out`, with seeds from the settings' seed on, and return the study.

    Runs are executed one by one in this process, or in several processes, with bit-identical results. Your own data set
    or model requires a single process. The settings' options apply to the strategies that have them; `options` has
    options of single strategies, by name. A run that fails is one of the study's failures and does not stop the others;
    invalid input and exceptions of `report` stop all.
    """
    if num_processes > 1 and (dataset is not None or model is not None):
        raise InputError(f"num_processes must be 1 with a dataset or model of your own, got {num_processes}")
    if dataset is None and settings.data.dataset not in NAMES:
        raise unknown("dataset", settings.data.dataset, NAMES)
    out = Path(out)
    by_name = options_of(strategies, settings.strategy.options, options)
    plan = _plan(settings, by_name, num_seeds, out, resume)
    left = unfinished(plan, report)
    if num_processes > 1:
        failures = _run_all(LocalEngine(num_processes, data_dir, max_restarts=0).run(left, trackers), report)
    else:
        parts = {"data_dir": data_dir, "dataset": dataset, "model": model}
        failures = _run_all(_one_by_one(left, report, trackers, parts), report)
    study = Study([Run.load(path) for path in plan if path.name not in failures], failures=failures)
    write_failures(study, out)
    return study


def check_for_many(out: Path | str) -> None:
    """Raise InputError if a folder belongs to a single run."""
    out = Path(out)
    if (out / "config.toml").exists():
        raise InputError(f"{out} belongs to a single run; name another folder with --out")


def unfinished(plan: Mapping[Path, Settings], report: Report | None) -> dict[Path, Settings]:
    """Return the runs of a plan that have not finished, and report those that have."""
    left = {path: settings for path, settings in plan.items() if RunFolder(path).finished() is None}
    for path in plan.keys() - left.keys():
        RunFolder(path).delete_checkpoints()  # a kill may have come before this was done
        if report is not None:
            report(path.name, {"done": True})
    return left


def _plan(
    settings: Settings, options: Mapping[str, dict[str, Any]], num_seeds: int, out: Path, resume: bool
) -> dict[Path, Settings]:
    """Return the settings of every run by its folder; raise InputError if one of them cannot start."""
    check_for_many(out)
    if any((out / name).exists() for name in (RUNS, RULES, SCALE)):
        raise InputError(f"{out} holds a contest or the paper's runs; name another folder with --out")
    plan = {}
    for seed in range(settings.run.seed, settings.run.seed + num_seeds):
        for name in options:
            of_one = settings.with_strategy(name, options[name])
            make_strategy(name, settings.strategy.deadline_s, of_one.strategy.options)
            run = settings.run.model_copy(update={"seed": seed})
            path = out / f"{name.replace(':', '.')}-seed{seed}"
            plan[path] = of_one.model_copy(update={"run": run})
            RunFolder(path).check(plan[path], resume)
    return plan


def _run_all(events: Generator[Event, None, None], report: Report | None) -> dict[str, str]:
    """Consume the events of all runs and return the reasons for failures by run; invalid input stops all runs."""
    failures = {}
    with contextlib.closing(events):
        for path, line in events:
            if line.get("kind") == InputError.__name__:
                raise InputError(f"{path.name}: {line['error']}")
            if "error" in line:
                failures[path.name] = line["error"]
            if report is not None:
                report(path.name, line)
    return failures


def _one_by_one(
    left: Mapping[Path, Settings], report: Report | None, trackers: Sequence[Tracker], parts: dict[str, Any]
) -> Generator[Event, None, None]:
    """Execute each run in this process, and yield how it ended; raise what `report` raises."""
    for path, settings in left.items():
        reporter = _Reporter(report, path.name) if report is not None else None
        line = execute_trial(path, settings, progress=reporter, trackers=trackers, **parts)
        if reporter is not None and reporter.raised is not None:
            raise reporter.raised
        yield path, line


@dataclass
class _Reporter:
    """Reports lines of a run and keeps what `report` raises: to `execute_trial`, it would be a failure of the run."""

    report: Report
    name: str
    raised: BaseException | None = None

    def __call__(self, line: dict[str, Any]) -> None:
        try:
            self.report(self.name, line)
        except BaseException as error:
            self.raised = error
            raise


def write_failures(study: Study, out: Path) -> None:
    """Write the reasons of failures to failures.json, or remove that file if no run failed."""
    if study.failures:
        write_whole(out / FAILURES, (json.dumps(dict(study.failures), indent=2) + "\n").encode())
    else:
        (out / FAILURES).unlink(missing_ok=True)


def write_table(study: Study, path: Path | str) -> None:
    """Write the table of a study as JSON, by strategy or as a list of rows; unknown values are null."""
    frame = study.table()
    by_name = study.by == ("strategy",)
    table = json.loads(frame.to_json(orient="index") if by_name else frame.reset_index().to_json(orient="records"))
    for strategy, failures in study.failures_by_strategy().items() if by_name else ():
        table.setdefault(strategy, dict.fromkeys(frame.columns) | {"seeds": 0})["failures"] = failures
    write_whole(Path(path), (json.dumps(table, allow_nan=False, indent=2) + "\n").encode())
