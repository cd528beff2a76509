"""The command `lesson sweep`."""

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import arg

from lesson.cli.console import PipedConsole, check_ended, check_failed, print_report
from lesson.core.errors import InputError, unknown

if TYPE_CHECKING:  # they import torch, which takes seconds and is not needed for --help
    from lesson.experiments.engines import LocalEngine, RayEngine
    from lesson.experiments.study import Study

MIN_WIDTH = 160


@dataclass(frozen=True)
class SweepCommand:
    """Train every combination of lists of settings over several seeds; rerun to continue.

    Example: lesson sweep examples/sweep.toml --out runs/sweep
    """

    file: Annotated[tyro.conf.Positional[str], arg(metavar="SETTINGS.toml")]
    """Settings file with a table [sweep] of lists."""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: runs/…)")] = None
    """Output folder, one subfolder per trial."""
    engine: Annotated[str, arg(metavar="local|ray")] = "local"
    """Processes on this machine, or Ray."""
    address: Annotated[str | None, arg(metavar="HOST:PORT", help_behavior_hint="")] = None
    """Address of a Ray cluster, or auto; by default, one is started here."""
    cpus_per_trial: Annotated[int, arg(metavar="N")] = 1
    """CPUs per trial."""
    gpus_per_trial: Annotated[float, arg(metavar="X")] = 0.0
    """GPUs per trial, on Ray; with 0.25, four trials share one."""
    data_dir: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder of the data sets."""
    log: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], arg(metavar="NAME", help_behavior_hint="")] = ()
    """Tracker: tensorboard, or a custom module:Class."""
    set: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE")] = ()
    """Setting of all trials, such as run.time_budget_s=500."""

    def run(self) -> None:
        from lesson.cli.sweep_progress import SweepProgress
        from lesson.experiments.grid import load_grid
        from lesson.experiments.sweep import sweep
        from lesson.runs.folder import RunFolder
        from lesson.runs.trackers import make_trackers

        engine, trackers = self._engine(), make_trackers(self.log)
        grid = load_grid(self.file, self.set)
        told = [trial.settings.caveats() for trial in grid.trials]
        for caveat in told[0]:
            if all(caveat in others for others in told):
                print(f"note: {caveat}")
        out = self.out or Path("runs") / Path(self.file).stem
        if (out / "sweep.toml").exists() and (out / "sweep.toml").samefile(self.file):
            raise InputError(f"{self.file} would be written over; keep it outside the folder, or take another --out")
        there = sum(RunFolder(out / trial.name).summary.exists() for trial in grid.trials)
        with SweepProgress({trial.name: trial.settings for trial in grid.trials}) as progress, self._quiet():
            try:
                study = sweep(grid, out, engine=engine, report=progress.report, trackers=trackers)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"interrupted; the same command with --out {out} goes on") from None
        before = f", {there} of them before" if there else ""
        print(f"{len(study.runs)} of {len(grid.trials)} trials done{before}")
        for name, times in progress.restarts.items():
            print(f"note: the process of {name} was killed {'once' if times == 1 else f'{times} times'} and replaced")
        self._print_outcome(study)
        if study.runs:
            print_report(study, out)
        print(f"folder: {out}")
        check_failed(study, len(grid.trials), f"--out {out}")
        check_ended(run.summary for run in study.runs)

    def _engine(self) -> "LocalEngine | RayEngine":
        """Return the engine that the flags select; raise InputError if they are invalid."""
        from lesson.experiments.engines import LocalEngine, RayEngine

        if self.engine not in ("local", "ray"):
            raise unknown("engine", self.engine, ["local", "ray"])
        if self.cpus_per_trial < 1:
            raise InputError(f"--cpus-per-trial must be >= 1, got {self.cpus_per_trial}")
        if not 0 <= self.gpus_per_trial < math.inf:
            raise InputError(f"--gpus-per-trial must be >= 0, got {self.gpus_per_trial}")
        if self.engine == "ray":
            return RayEngine(self.address, self.cpus_per_trial, self.gpus_per_trial, self.data_dir)
        if self.address is not None or self.gpus_per_trial:
            raise InputError("--address and --gpus-per-trial must be left out without --engine ray")
        return LocalEngine(max(1, (os.cpu_count() or 1) // self.cpus_per_trial), self.data_dir)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Suppress output on stdout within the context: Ray prints at length when a worker is killed."""
        if self.engine == "local":
            yield
        else:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                yield

    def _print_outcome(self, study: "Study") -> None:
        """Print the tables at full width, so that no number is cut off."""
        from lesson.report.study.sweep_text import failure_table, sweep_table

        console = PipedConsole()
        if study.failures:
            console.print(failure_table(study))
        console.width = max(console.width, MIN_WIDTH)
        if study.runs:
            console.print(sweep_table(study, Path(self.file).name))
