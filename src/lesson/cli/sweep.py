"""The command `lesson sweep`."""

import math
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from lesson.cli.console import PipedConsole, check_ended, check_failed, execute_design, print_report
from lesson.cli.parser import DIR, FILE, NUMBER, WHOLE, argument, data_dir_option, log_option, option
from lesson.core.errors import InputError, MismatchError
from lesson.report.words import count, terminal_table
from lesson.settings.loading import check_set_once

if TYPE_CHECKING:  # they import torch, which takes seconds and is not needed for --help
    from lesson.experiments.design import Design
    from lesson.experiments.engines import Engine
    from lesson.experiments.study import Study
    from lesson.experiments.tuned.study import TunedStudy

MIN_WIDTH, MAX_MISSING = 180, 10
_engine = partial(option, heading="Engine")
_tuning = partial(option, heading="Tuned comparison")
_verifying = partial(option, heading="Verification of a tuned comparison")


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
        "--dry-run", is_flag=True, help="Only print the number of runs and the time and memory that they need."
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
        help="Stop after this many seconds of real time; rerun to continue. 0 only redraws the results.",
    )
    verify: str | None = _verifying(
        "--verify",
        metavar="ENTRY",
        help="Rerun the final runs of an entry and compare them with those in the output folder; exit status 1 if they "
        "differ. Nothing in the folder changes.",
    )
    beta: float | None = _verifying(
        "--beta", type=NUMBER, show_default="all", help="Verify only the runs with this beta."
    )
    seed: int | None = _verifying("--seed", type=WHOLE, show_default="all", help="Verify only the runs with this seed.")
    engine: str = _engine(
        "--engine", metavar="local|ray", default="local", help="Run in processes on this machine, or on Ray."
    )
    address: str | None = _engine(
        "--address",
        metavar="HOST:PORT",
        help="Address of a Ray cluster, or auto; by default, Ray is started on this machine.",
    )
    cpus_per_trial: int = _engine("--cpus-per-trial", type=WHOLE, default=1, help="CPUs per run.")
    gpus_per_trial: float = _engine(
        "--gpus-per-trial", type=NUMBER, default=0.0, help="GPUs per run, on Ray; with 0.25, four runs share one."
    )

    def run(self) -> None:
        from lesson.api import out_for
        from lesson.experiments.tuned.study import TunedStudy
        from lesson.runs.trackers import checked_trackers

        engine, trackers, design = self._engine(), checked_trackers(self.log), self._design()
        out = self.out or out_for(self.file or "strategies.toml")
        if self.verify is not None:
            self._verify(self.verify, design, out, engine)
            return
        if self.dry_run:
            self._print_estimate(design, out)
            return
        flags, on_error = f"--out {out}", "stop" if self.tune else "continue"
        study, progress = execute_design(design, out, engine, flags, on_error=on_error, trackers=trackers)
        for name, times in progress.restarts.items():
            print(f"note: the process of {name} was killed {'once' if times == 1 else f'{times} times'} and replaced")
        if study.failures:
            from lesson.report.study.sweep_text import failure_table

            PipedConsole().print(failure_table(study))
        if isinstance(study, TunedStudy):
            num_runs = len(design.runs(study.done))
            self._show_tuned(study, out)
        else:
            num_runs = len(design.runs({}))
            self._show(study, out, num_runs)
        print(f"folder: {out}")
        check_failed(study, num_runs, flags)
        check_ended(run.summary for run in study.runs if not run.diverged)

    def _design(self) -> "Design":
        """Return the design of the file; print caveats that apply to all of its runs."""
        from lesson.experiments.grid import load_grid
        from lesson.experiments.tuned.design import FILE as STRATEGIES
        from lesson.experiments.tuned.design import TunedComparison

        if self.tune:
            self._check_tuned()
            return TunedComparison.load(self.file or STRATEGIES).select(self.entries.split(",") if self.entries else ())
        for name in ("entries", "verify", "beta", "seed"):
            if getattr(self, name) is not None:
                raise InputError(f"--{name} requires --tune")
        if self.file is None:
            raise InputError("SETTINGS.toml must be given: a file with a table [sweep]; see 'lesson sweep --help'")
        if self.task is not None and ":" not in self.task:
            raise InputError(f"--task must be module:function, got '{self.task}'; set data.dataset for a built-in task")
        changes = (*self.set, f'data.dataset="{self.task}"') if self.task is not None else self.set
        check_set_once(changes)
        grid = load_grid(self.file, changes)
        told = [settings.caveats() for settings in grid.trials.values()]
        for caveat in told[0]:
            if all(caveat in others for others in told):
                print(f"note: {caveat}")
        return grid

    def _check_tuned(self) -> None:
        """Raise InputError for options that a tuned comparison does not have."""
        if self.set or self.task:
            name = "--set" if self.set else "--task"
            raise InputError(f"{name} cannot be combined with --tune: the file has the settings of every entry")
        if self.verify is None and (self.beta is not None or self.seed is not None):
            raise InputError(f"{'--seed' if self.beta is None else '--beta'} requires --verify")
        if self.verify is not None and self.entries is not None:
            raise InputError("--entries cannot be combined with --verify, which names the entry")

    def _verify(self, row: str, design: "Design", out: Path, engine: "Engine") -> None:
        """Rerun an entry in a temporary folder and print how it compares; raise MismatchError if it differs."""
        from lesson import api
        from lesson.experiments.tuned.design import TunedComparison
        from lesson.experiments.tuned.rerun import Rerun, rule_of

        assert isinstance(design, TunedComparison), "--verify requires --tune"
        rerun = Rerun.load(design, out, row, self.beta, self.seed)
        with tempfile.TemporaryDirectory(prefix="lesson-verify-") as folder:
            if self.dry_run:
                self._print_estimate(rerun, Path(folder))
                return
            study = api.execute_design(rerun, Path(folder) / "runs", engine, on_error="stop")
            check_failed(study, len(rerun.named), "--verify")
            if len(study.runs) < len(rerun.named):
                raise InputError(f"--seconds must be longer: {len(study.runs)} of {len(rerun.named)} runs finished")
            results = rerun.compare(study.runs)
            rules = dict.fromkeys(rule_of(rerun.before[run.name], run) for run in study.runs)
        for result in results:
            print(f"{result.name}: {result.told}")
        for rule in rules:
            print(f"rule: {rule}")
        if wrong := [result for result in results if result.problem]:
            first = f"{len(wrong)} of {count(len(results), 'check')} failed, first {wrong[0].name}: {wrong[0].problem}"
            remedy = f"check that code and data are those of the archive; {out / 'study.toml'} lists the commits"
            raise MismatchError(f"'{row}' differs from {out}: {first}; {remedy}")
        same = sum(result.identical for result in results)
        print(f"verified: '{row}' agrees with {out}: {count(len(study.runs), 'run')}, {same} identical")

    def _engine(self) -> "Engine":
        """Return the engine that the options select; raise InputError if they are invalid."""
        from lesson.experiments.engines import make_engine

        return make_engine(
            self.engine,
            data_dir=self.data_dir,
            seconds=self.seconds,
            address=self.address,
            cpus_per_trial=self.cpus_per_trial,
            gpus_per_trial=self.gpus_per_trial,
        )

    def _print_estimate(self, design: "Design", out: Path) -> None:
        from lesson.experiments.estimate import estimate

        with Console(stderr=True).status("Timing a few rounds"):
            found = estimate(design, out, self.data_dir, self.cpus_per_trial)
        print(f"{count(found.num_runs, 'run')}, {found.num_done:,} done")
        if found.num_left:
            processes = f"{found.num_processes} process{'' if found.num_processes == 1 else 'es'}"
            time = f"{found.minutes:.0f} min" if found.minutes >= 2 else f"{60 * found.minutes:.0f} s"
            print(f"about {time} in {processes}, with {found.memory_gb:.1f} GB of memory")

    def _show(self, study: "Study", out: Path, num_runs: int) -> None:
        """Write table.json, table.csv and the report of a sweep, and print its table at full width."""
        from lesson.core.files import write_whole
        from lesson.experiments.study import TABLE, write_table
        from lesson.report.study.sweep_text import sweep_table

        print(f"{len(study.runs)} of {count(num_runs, 'run')} done")
        write_table(study, out / TABLE)
        write_whole(out / "table.csv", study.table().to_csv().encode())
        if study.runs:
            console = PipedConsole()
            console.width = max(console.width, MIN_WIDTH)
            console.print(sweep_table(study, Path(str(self.file)).name))
            print_report(study, out)

    def _show_tuned(self, study: "TunedStudy", out: Path) -> None:
        """Write figures and tables of a tuned comparison, and print its tables at full width."""
        from lesson.report.page.board import BOARD
        from lesson.report.study.compare_text import what_is_shown
        from lesson.report.tuned.tables import group_table
        from lesson.report.tuned.write import missing_runs, write_tuned

        with Console(stderr=True).status("Drawing"):
            page = write_tuned(study, out)
        console, table = PipedConsole(), study.table()
        console.width = max(console.width, MIN_WIDTH)
        for (group, beta), rows in table.groupby(["group", "beta"], sort=False) if len(table) else ():
            shown = group_table(rows, study.design.rules).drop(columns="settings")
            console.print(terminal_table(shown, f"{group}, β = {beta:g}, {what_is_shown(rows)}"))
        missing = missing_runs(study)
        for name, number in list(missing.items())[:MAX_MISSING]:
            print(f"{name}: {count(number, 'run')} missing")
        if len(missing) > MAX_MISSING:
            print(f"and {len(missing) - MAX_MISSING} more entries; repeat the command to continue")
        print(f"page: {page}")
        if len(table):
            print(f"board: {out / BOARD}")
