"""The command `lesson sweep`."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lesson.cli.console import show_study
from lesson.cli.parser import DIR, FILE, NUMBER, WHOLE, argument, data_dir_option, lanes_option, log_option, option
from lesson.core.errors import InputError

if TYPE_CHECKING:  # they import torch, which takes seconds and is not needed for --help
    from lesson.experiments.study import Study

_engine = partial(option, heading="Engine")
_tuning = partial(option, heading="Tuned comparison")


@dataclass(frozen=True)
class SweepCommand:
    """Train every combination of the values in a settings file. Repeat the command to continue.

    Example: lesson sweep examples/sweep.toml --out runs/sweep
    """

    file: Path | None = argument(
        "file",
        required=False,
        type=FILE,
        metavar="SETTINGS.toml",
        help="Settings file with a table [sweep] of lists; with --tune, the file of a tuned comparison.",
    )
    set: tuple[str, ...] = option(
        "--set",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any setting, for all runs, such as run.time_budget_s=500; repeatable.",
    )
    task: str | None = option(
        "--task", metavar="MODULE:FUNCTION", help="Your own task for all runs: a function that returns a lesson.Task."
    )
    out: Path | None = option("--out", type=DIR, show_default="runs/...", help="Output folder, one subfolder per run.")
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Print how many runs there are and how many have finished, and exit."
    )
    log: tuple[str, ...] = log_option()
    data_dir: Path | None = data_dir_option()
    tune: bool = _tuning(
        "--tune",
        is_flag=True,
        help="Tune each entry of the file on a small grid, then run its best settings on all seeds. "
        "Without a file: the strategies of docs/explanation/comparison.md.",
    )
    entries: str | None = _tuning(
        "--entries", metavar="A,B,...", show_default="all", help="Run only these entries or groups of entries."
    )
    seconds: float = _tuning(
        "--seconds",
        type=NUMBER,
        default=math.inf,
        show_default="no limit",
        help="Stop after this many seconds of real time; repeat the command to continue.",
    )
    engine: str = _engine(
        "--engine", metavar="local|ray", default="local", help="Run in processes on this machine, or on Ray."
    )
    address: str | None = _engine(
        "--address",
        metavar="HOST:PORT",
        help="Address of a Ray cluster, or auto; by default, Ray is started on this machine.",
    )
    cpus_per_trial: int = _engine("--cpus-per-trial", type=WHOLE, default=1, help="CPUs per run.")
    lanes: int | None = lanes_option(heading="Engine")
    gpus_per_trial: float = _engine(
        "--gpus-per-trial", type=NUMBER, default=0.0, help="GPUs per run, on Ray; with 0.25, four runs share one."
    )

    resume: bool = option(
        "--resume/--no-resume", default=True, help="Resume unfinished runs in the output folder, or stop with an error."
    )

    def run(self) -> None:
        from lesson import api
        from lesson.experiments.engines import make_engine
        from lesson.report.words import count

        self._check()
        engine = make_engine(
            self.engine,
            data_dir=self.data_dir,
            seconds=self.seconds,
            address=self.address,
            cpus_per_trial=self.cpus_per_trial,
            gpus_per_trial=self.gpus_per_trial,
            num_lanes=self.lanes,
        )
        changes = (*self.set, f'data.dataset="{self.task}"') if self.task is not None else self.set
        if self.dry_run:
            wanted, done = self._runs(changes)
            print(f"{count(wanted, 'run')}, {done:,} finished")
            if self.tune:
                print("note: the final runs of an entry are counted only once its tuning runs have finished")
            return
        how: dict[str, Any] = {"out": self.out, "engine": engine, "resume": self.resume, "trackers": self.log}
        if self.tune:
            study: Study = api.tune(self.file, only=self._only, **how)
        else:
            assert self.file is not None
            study = api.sweep(self.file, overrides=changes, **how)
        show_study(study)

    def _check(self) -> None:
        """Raise InputError for options that cannot be combined."""
        if self.tune and (self.set or self.task):
            name = "--set" if self.set else "--task"
            raise InputError(f"{name} cannot be combined with --tune: the file has the settings of every entry")
        if self.entries is not None and not self.tune:
            raise InputError("--entries requires --tune")
        if self.file is None and not self.tune:
            raise InputError("SETTINGS.toml is required: a file with a table [sweep]; see 'lesson sweep --help'")
        if self.task is not None and ":" not in self.task:
            raise InputError(f"--task must be module:function, got '{self.task}'; set data.dataset for a built-in task")

    @property
    def _only(self) -> list[str]:
        return self.entries.split(",") if self.entries else []

    def _runs(self, changes: tuple[str, ...]) -> tuple[int, int]:
        """Return the number of runs and of finished runs; a tuned comparison counts only the runs known so far."""
        from lesson.api import out_for
        from lesson.experiments.folder import StudyFolder
        from lesson.experiments.grid import load_grid
        from lesson.experiments.tuning.file import STRATEGIES, Tuning
        from lesson.experiments.tuning.tune import plan_tuning

        file = self.file or STRATEGIES
        folder = StudyFolder(self.out or out_for(file))
        done = folder.runs()
        plan = plan_tuning(Tuning.load(file), done, self._only) if self.tune else load_grid(file, changes)
        folder.check(plan.kind)
        return len(plan.runs), len(plan.runs.keys() & done.keys())
