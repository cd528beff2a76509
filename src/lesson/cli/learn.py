"""The commands `lesson run` and `lesson compare`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import arg

from lesson.cli.console import PipedConsole, check_ended, check_failed, print_notes, print_report
from lesson.core.errors import InputError, RunStoppedError, describe
from lesson.settings.loading import check_set_once, load_settings
from lesson.settings.settings import Settings
from lesson.strategies import options_of, split_changes

if TYPE_CHECKING:  # it imports torch, which takes seconds and is not needed for --help
    from lesson.experiments.study import Study


@dataclass(frozen=True)
class _Learning:
    """Flags that `run` and `compare` share."""

    scenario: Annotated[str, arg(metavar="NAME|FILE")] = "released"
    """Preset (released, printed) or a settings file."""
    dataset: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: mnist)")] = None
    """mnist, cifar10 or fashion-mnist."""
    beta: Annotated[float | None, arg(metavar="X", help_behavior_hint="(default: 1)")] = None
    """Concentration of the Dirichlet split."""
    deadline: Annotated[float | None, arg(metavar="S", help_behavior_hint="(default: 20)")] = None
    """Deadline of a round in seconds, or inf."""
    rounds: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Stop after this many rounds."""
    time_budget: Annotated[float | None, arg(metavar="S", help_behavior_hint="(default: 10000)")] = None
    """Stop after this many simulated seconds."""
    seed: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 0)")] = None
    """Random seed."""
    device: Annotated[str | None, arg(metavar="auto|cpu|cuda", help_behavior_hint="(default: auto)")] = None
    """Device to train on; auto uses a GPU if there is one."""
    data_dir: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder of the data sets."""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: runs/…)")] = None
    """Output folder."""
    resume: Annotated[bool, arg(help_behavior_hint="")] = False
    """Resume the run in this folder."""
    log: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], arg(metavar="NAME", help_behavior_hint="")] = ()
    """Tracker: tensorboard, or a custom module:Class."""
    set: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE")] = ()
    """Any setting, such as training.lr_cap=0.5 or fedbuff.concurrency=5."""

    def settings(self, changes: Sequence[str], strategy: str | None = None) -> Settings:
        """Return the settings from the flags and the changes by --set, and print their warnings."""
        flags = {
            "data.dataset": self.dataset,
            "data.beta": self.beta,
            "strategy.name": strategy,
            "strategy.deadline_s": self.deadline,
            "run.rounds": self.rounds,
            "run.time_budget_s": self.time_budget,
            "run.seed": self.seed,
            "run.device": self.device,
        }
        check_set_once(self.set, flags)
        settings = load_settings(self.scenario, changes, flags)
        for caveat in settings.caveats():
            print(f"note: {caveat}")
        return settings


@dataclass(frozen=True)
class RunCommand(_Learning):
    """Train one strategy in simulated time; writes settings, metrics and the model to a folder.

    Example: lesson run --strategy lesson --time-budget 2000
    """

    strategy: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: lesson)")] = None
    """Name from 'lesson strategies', or a custom strategy."""

    def run(self) -> None:
        from lesson.cli.progress import RunProgress
        from lesson.experiments.study import Run, Study
        from lesson.runs.execute import execute
        from lesson.runs.folder import RunFolder
        from lesson.runs.trackers import make_trackers

        trackers = make_trackers(self.log)
        changes, own = split_changes(self.set)
        settings = self.settings(changes, self.strategy)
        strategy = settings.strategy.name
        options = options_of([strategy], settings.strategy.options, own)[strategy]
        settings = settings.with_strategy(strategy, options)
        name = f"{settings.strategy.name.replace(':', '.')}-{settings.data.dataset}-seed{settings.run.seed}"
        out = self.out or Path("runs") / name
        ended = RunFolder(out).summary.exists()
        with RunProgress(settings, 1) as progress:
            try:
                summary = execute(
                    settings,
                    out,
                    resume=self.resume,
                    progress=lambda line: progress.report(name, line),
                    trackers=trackers,
                    data_dir=self.data_dir,
                )
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"interrupted; the same command with --out {out} --resume goes on") from None
            except (InputError, RunStoppedError):
                raise
            except (Exception, SystemExit) as error:
                if ":" not in settings.strategy.name:
                    raise
                raise RunStoppedError(f"{settings.strategy.name}: {describe(error)}") from None
        print(
            f"{summary['strategy']} on {summary['dataset']}: accuracy {summary['accuracy']:.4f} "
            f"({summary['accuracy_last10']:.4f} on average at the end) after {summary['rounds']} rounds, "
            f"{summary['time_s']:g} simulated s, {summary['uploads']} uploads{_troubles(summary)}; "
            f"{summary['wall_s']:.1f} s here, on {'a GPU' if summary['device'] == 'cuda' else 'the CPU'}"
        )
        print_notes(summary["notes"])
        print_report(Study([Run.load(out)]), out)
        print(f"folder: {out}{' (had ended before, not run again)' if ended else ''}")
        check_ended([summary])


def _troubles(summary: dict[str, Any]) -> str:
    """Return the numbers of late, lost and rejected updates, as far as there are any."""
    lost = f", {summary['lost']} lost" if summary.get("lost") else ""
    late = f", {summary['misses']} of them late" if summary.get("misses") else ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary.get("rejected_by", {}).items())
    return late + lost + (f", {summary['rejected']} rejected ({reasons})" if reasons else "")


@dataclass(frozen=True)
class CompareCommand(_Learning):
    """Train several strategies over several seeds within the same limits; writes a table and figures.

    Example: lesson compare --strategies lesson,fedavg --seeds 2 --time-budget 3000
    """

    strategies: Annotated[str, arg(metavar="A,B,…")] = "lesson,fedavg,fedcs"
    """Strategies to compare."""
    seeds: Annotated[int, arg(metavar="N")] = 3
    """Number of seeds, from --seed on."""

    def run(self) -> None:
        from lesson.cli.progress import RunProgress
        from lesson.experiments.study import COMPARED, compare, write_table
        from lesson.report.study.compare_text import comparison_table
        from lesson.report.study.groups import title_of
        from lesson.report.study.sweep_text import failure_table
        from lesson.runs.trackers import make_trackers

        trackers = make_trackers(self.log)
        names = [name.strip() for name in self.strategies.split(",") if name.strip()]
        if not names or len(set(names)) != len(names):
            raise InputError(f"--strategies must be different names with commas between, got '{self.strategies}'")
        if not 1 <= self.seeds <= 1000:
            raise InputError(f"--seeds must be 1 to 1000, got {self.seeds}")
        changes, options = split_changes(self.set)
        if any(change.partition("=")[0].strip() == "strategy.name" for change in changes):
            raise InputError("strategy.name must not be set in a comparison; --strategies names what to compare")
        settings = self.settings(changes)
        out = self.out or Path("runs") / f"compare-{settings.data.dataset}-seed{settings.run.seed}"
        with RunProgress(settings, len(names) * self.seeds) as progress:
            try:
                study = compare(
                    settings,
                    names,
                    self.seeds,
                    out,
                    resume=self.resume,
                    num_processes=os.cpu_count() or 1,
                    data_dir=self.data_dir,
                    report=progress.report,
                    trackers=trackers,
                    options=options,
                )
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"interrupted; the same command with --out {out} --resume goes on") from None
        title = title_of(settings)
        write_table(study, out / COMPARED)
        console = PipedConsole()
        failed = {name: len(failures) for name, failures in study.failures_by_strategy().items()}
        if failed:
            console.print(failure_table(study))
        console.print(comparison_table(study.table(), f"{title}, {self.seeds} seeds", failed))
        print_notes(note for run in study.runs for note in run.summary["notes"])
        if study.runs:
            self._draw(study, title, out)
            print_report(study, out)
        print(f"folder: {out}")
        check_failed(study, len(names) * self.seeds, f"--out {out} --resume")
        check_ended(run.summary for run in study.runs)

    def _draw(self, study: "Study", title: str, out: Path) -> None:
        from lesson.report.study.accuracy_figure import draw_comparison

        figures = draw_comparison(study, title, out)
        for path in figures:
            print(f"figure: {path}")
        if not figures:
            print("no figures: no round ended within the limits")
