"""Many runs: strategies × seeds under the same settings, in processes side by side, and what comes out of them."""

import contextlib
import json
import math
import os
import queue
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lesson.errors import InputError, RunStoppedError
from lesson.learn.backend import on_device
from lesson.learn.data import Dataset
from lesson.learn.models import ModelFactory
from lesson.runs import RunFolder, execute
from lesson.settings import Settings, load_settings
from lesson.strategies import make_strategy
from lesson.summary import TARGETS, read_metrics

POLL_S = 0.2
# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; beyond, expanded from the normal one.
_STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_Z = 1.959964

Report = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Run:
    """A finished run, read from its folder."""

    path: Path
    settings: Settings
    summary: dict[str, Any]

    @classmethod
    def load(cls, path: Path) -> "Run":
        """The run of a folder."""
        folder = RunFolder(path)
        if (summary := folder.finished()) is None:
            raise InputError(f"{path} holds no finished run; 'lesson run --out {path} --resume' goes on with one")
        return cls(path, load_settings(str(folder.config)), summary)

    def to_frame(self) -> pd.DataFrame:
        """A row per round."""
        return pd.DataFrame(read_metrics(RunFolder(self.path).metrics))


@dataclass(frozen=True)
class Study:
    """Several finished runs."""

    runs: Sequence[Run]

    def to_frame(self) -> pd.DataFrame:
        """A row per run: strategy, seed and its summary."""
        rows = []
        for run in self.runs:
            times = {f"time_to_{target}": seconds for target, seconds in run.summary["time_to_s"].items()}
            rows.append(
                {name: value for name, value in run.summary.items() if name not in ("time_to_s", "notes")} | times
            )
        return pd.DataFrame(rows)

    def curves(self) -> pd.DataFrame:
        """A row per evaluation of every run: strategy, seed, round, time_s, accuracy, loss."""
        frames = [
            frame.dropna(subset="accuracy").assign(strategy=run.summary["strategy"], seed=run.summary["seed"])
            for run in self.runs
            if "accuracy" in (frame := run.to_frame())
        ]
        columns = ["strategy", "seed", "round", "time_s", "accuracy", "loss"]
        return pd.concat(frames)[columns].reset_index(drop=True) if frames else pd.DataFrame(columns=columns)

    def table(self) -> pd.DataFrame:
        """A row per strategy: the mean over seeds of each figure and, as NAME_ci95, half its 95 % interval."""
        names = ["accuracy_last10", "uploads", "bytes_up", "energy_j", *(f"time_to_{target:g}" for target in TARGETS)]
        rows = {}
        for strategy, runs in self.to_frame().groupby("strategy", sort=False):
            figures: dict[str, float] = {"seeds": len(runs)}
            for name in names:
                values = runs[name].astype(float)
                reached = values.notna().all()
                figures[name] = float(values.mean()) if reached else math.nan
                figures[f"{name}_ci95"] = half_interval(values.to_numpy()) if reached else math.nan
            rows[strategy] = figures
        return pd.DataFrame.from_dict(rows, orient="index")


def half_interval(values: np.ndarray) -> float:
    """Half the 95 % confidence interval of a mean by Student's t; NaN for a single value."""
    if len(values) < 2:
        return math.nan
    degrees = len(values) - 1
    expanded = _Z + (_Z**3 + _Z) / (4 * degrees) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * degrees**2)
    quantile = _STUDENT_T[degrees - 1] if degrees <= len(_STUDENT_T) else expanded
    return float(quantile * np.std(values, ddof=1) / math.sqrt(len(values)))


def compare(
    settings: Settings,
    strategies: Sequence[str],
    num_seeds: int,
    out: Path | str,
    *,
    resume: bool = False,
    num_processes: int = 1,
    data_dir: Path | None = None,
    report: Report | None = None,
    dataset: Dataset | None = None,
    model: ModelFactory | None = None,
) -> Study:
    """Run strategies × seeds from the settings' seed on, in folders of `out`, and read them back.

    In this process one after the other, or in several side by side; the bits are the same. A data set or a model of
    one's own goes with a single process.
    """
    if num_processes > 1 and (dataset is not None or model is not None):
        raise InputError("num_processes must be 1 with a dataset or model of one's own")
    plan = _plan(settings, strategies, num_seeds, Path(out), resume)
    left = {path: one for path, one in plan.items() if RunFolder(path).finished() is None}
    if report is not None:
        for path in plan.keys() - left.keys():
            report(path.name, {"done": True})
    if num_processes > 1:
        run_all(left, num_processes, data_dir, report)
    else:
        for path, one in left.items():
            tell = partial(report, path.name) if report is not None else None
            execute(one, path, resume=True, progress=tell, data_dir=data_dir, dataset=dataset, model=model)
            if report is not None:
                report(path.name, {"done": True})
    return Study([Run.load(path) for path in plan])


def _plan(
    settings: Settings, strategies: Sequence[str], num_seeds: int, out: Path, resume: bool
) -> dict[Path, Settings]:
    """The settings of every run by its folder; raises if one of them could not begin."""
    settings = on_device(settings)
    if (out / "config.toml").exists():
        raise InputError(f"{out} belongs to a single run; name another folder with --out")
    plan = {}
    for seed in range(settings.run.seed, settings.run.seed + num_seeds):
        for name in strategies:
            make_strategy(name, settings.scenario.deadline_s, settings.strategy.options)
            strategy = settings.strategy.model_copy(update={"name": name})
            run = settings.run.model_copy(update={"seed": seed})
            path = out / f"{name.replace(':', '.')}-seed{seed}"
            plan[path] = settings.model_copy(update={"strategy": strategy, "run": run})
            RunFolder(path).check(plan[path], resume)
    return plan


def run_all(plan: dict[Path, Settings], num_processes: int, data_dir: Path | None, report: Report | None) -> None:
    """Execute runs in several processes; an error ends all of them."""
    context = get_context("spawn")
    jobs, messages = context.Queue(), context.Queue()
    cores, num_workers = os.cpu_count() or 1, min(num_processes, len(plan))
    for path, settings in plan.items():
        jobs.put((path, settings))
    for _ in range(num_workers):
        jobs.put(None)
    shared = (jobs, messages, os.getpid(), data_dir, max(1, cores // max(1, num_workers)))
    workers = [context.Process(target=_work, args=shared) for _ in range(num_workers)]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C waits until workers are ready for it
    try:
        for worker in workers:
            worker.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        _follow(set(plan), workers, messages, report)
    except BaseException:
        with contextlib.suppress(queue.Empty):
            while True:
                jobs.get_nowait()
        for worker in workers:
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, signal.SIGINT)  # it keeps where it stands
        raise
    finally:
        for worker in workers:
            worker.join()


def _follow(left: set[Path], workers: Sequence[SpawnProcess], messages: Any, report: Report | None) -> None:
    """Pass on what workers tell until every run is done; raise what goes wrong in one."""
    while left:
        ended = [worker.exitcode for worker in workers if worker.exitcode is not None]
        try:
            path, line = messages.get(timeout=POLL_S)
        except queue.Empty:
            if any(ended) or len(ended) == len(workers):
                raise RunStoppedError(f"a process ended with status {max(ended)}; --resume goes on") from None
            continue
        if "error" in line:
            raise (InputError if line["kind"] == "InputError" else RunStoppedError)(f"{path.name}: {line['error']}")
        if "done" in line:
            left.remove(path)
        if report is not None:
            report(path.name, line)


def _work(jobs: Any, messages: Any, parent: int, data_dir: Path | None, num_threads: int) -> None:
    """Execute one run after the other and tell how far they are; end when whoever started this is gone."""
    os.setsid()  # Ctrl-C reaches the process that started this one, which passes it on
    with contextlib.suppress(KeyboardInterrupt):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        while os.getppid() == parent and (job := jobs.get()) is not None:
            path, settings = job
            _execute_job(path, settings, messages, parent, data_dir, num_threads)


def _execute_job(
    path: Path, settings: Settings, messages: Any, parent: int, data_dir: Path | None, num_threads: int
) -> None:
    """One run, told about a few times a second."""
    told = 0.0

    def tell(line: dict[str, Any]) -> None:
        nonlocal told
        if os.getppid() != parent:
            os._exit(1)
        if "accuracy" in line or time.perf_counter() - told > POLL_S:
            told = time.perf_counter()
            messages.put((path, line))

    try:
        execute(settings, path, resume=True, progress=tell, data_dir=data_dir, num_threads=num_threads)
        messages.put((path, {"done": True}))
    except (InputError, RunStoppedError) as error:
        messages.put((path, {"error": str(error), "kind": type(error).__name__}))


def load_study(folder: Path) -> Study:
    """The finished runs in the folders of a folder."""
    paths = sorted(path.parent for path in folder.glob("*/summary.json"))
    if not paths:
        raise InputError(f"{folder} holds no finished run")
    return Study([Run.load(path) for path in paths])


def write_table(study: Study, path: Path) -> None:
    """The table of a study as JSON: what is not known is null."""
    table = json.loads(study.table().to_json(orient="index"))
    path.write_text(json.dumps(table, allow_nan=False, indent=2) + "\n")
