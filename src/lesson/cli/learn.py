"""The commands `lesson run` and `lesson compare`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lesson.cli.console import PipedConsole, check_ended, check_failed, execute_design, print_notes, print_report
from lesson.cli.parser import (
    DIR,
    NUMBER,
    SECONDS,
    STRATEGY,
    WHOLE,
    data_dir_option,
    latencies_option,
    log_option,
    option,
    scenario_option,
)
from lesson.core.errors import InputError, RunStoppedError, describe
from lesson.settings.loading import check_set_once, load_settings
from lesson.settings.settings import Settings
from lesson.strategies import options_of, split_changes

if TYPE_CHECKING:  # it imports torch, which takes seconds and is not needed for --help
    from lesson.experiments.study import Study

_experiment = partial(option, heading="Experiment")
_limits = partial(option, heading="Limits")
_output = partial(option, heading="Output")
_machine = partial(option, heading="Machine")


@dataclass(frozen=True)
class _Learning:
    """Options that `run` and `compare` share."""

    scenario: str = scenario_option(heading="Experiment")
    dataset: str | None = _experiment(
        "--dataset", metavar="NAME", show_default="mnist", help="Built-in task; 'lesson tasks' lists them."
    )
    task: str | None = _experiment(
        "--task", metavar="MODULE:FUNCTION", help="Your own task: a function that returns a lesson.Task."
    )
    beta: float | None = _experiment(
        "--beta",
        type=NUMBER,
        show_default="1",
        help="Concentration of the Dirichlet split; smaller values give more unequal clients.",
    )
    latencies: Path | None = latencies_option(heading="Experiment")
    deadline: float | None = _experiment(
        "--deadline", type=SECONDS, show_default="20", help="Round deadline in seconds, or inf."
    )
    seed: int | None = _experiment("--seed", type=WHOLE, show_default="0", help="Random seed.")
    set: tuple[str, ...] = _experiment(
        "--set", multiple=True, metavar="KEY=VALUE", help="Any setting, such as fedbuff.concurrency=5; repeatable."
    )
    rounds: int | None = _limits("--rounds", type=WHOLE, help="Stop after this many rounds.")
    time_budget: float | None = _limits(
        "--time-budget", type=SECONDS, show_default="10000", help="Stop after this many simulated seconds."
    )
    out: Path | None = _output("--out", type=DIR, show_default="runs/...", help="Output folder.")
    resume: bool = _output(
        "--resume", is_flag=True, help="Resume the unfinished run or comparison in the output folder."
    )
    log: tuple[str, ...] = log_option(heading="Output")
    device: str | None = _machine(
        "--device", metavar="auto|cpu|cuda", show_default="auto", help="Device to train on; auto prefers a GPU."
    )
    data_dir: Path | None = data_dir_option(heading="Machine")

    def settings(self, changes: Sequence[str], strategy: str | None = None) -> Settings:
        """Return the settings that the flags and --set define."""
        if self.dataset is not None and self.task is not None:
            raise InputError(f"--dataset and --task must not both be given, got '{self.dataset}' and '{self.task}'")
        if self.dataset is not None and ":" in self.dataset:
            raise InputError(f"--dataset must be the name of a built-in task, got '{self.dataset}'; use --task")
        if self.task is not None and ":" not in self.task:
            raise InputError(f"--task must be module:function, got '{self.task}'; use --dataset for a built-in task")
        flags = {
            "data.dataset": self.task or self.dataset,
            "data.beta": self.beta,
            "fleet.latencies": None if self.latencies is None else str(self.latencies),
            "strategy.name": strategy,
            "strategy.deadline_s": self.deadline,
            "run.rounds": self.rounds,
            "run.time_budget_s": self.time_budget,
            "run.seed": self.seed,
            "run.device": self.device,
        }
        check_set_once(self.set, flags)
        return load_settings(self.scenario, changes, flags)


@dataclass(frozen=True)
class RunCommand(_Learning):
    """Train one strategy in simulated time. Saves settings, metrics and the model.

    Example: lesson run --strategy lesson --time-budget 2000
    """

    strategy: str | None = _experiment(
        "--strategy", type=STRATEGY, show_default="lesson", help="Name from 'lesson strategies', or your module:Class."
    )

    def run(self) -> None:
        from lesson.experiments.naming import run_name
        from lesson.experiments.run import Run
        from lesson.experiments.study import Study
        from lesson.learn.metric import Metric
        from lesson.report.metric_words import final_score, metric_number
        from lesson.report.progress import RunProgress
        from lesson.runs.execute import execute
        from lesson.runs.trackers import checked_trackers

        trackers = checked_trackers(self.log)
        changes, own = split_changes(self.set)
        settings = self.settings(changes, self.strategy)
        strategy = settings.strategy.name
        options = options_of([strategy], settings.strategy.options, own)[strategy]
        settings = settings.with_strategy(strategy, options)
        out = self.out or Path("runs") / run_name(settings)
        with RunProgress(settings.run) as progress:
            try:
                summary = execute(
                    settings,
                    out,
                    resume=self.resume,
                    progress=progress.report,
                    trackers=trackers,
                    data_dir=self.data_dir,
                    tell=_tell,
                )
            except KeyboardInterrupt:
                flags = f"--out {out} --resume"
                raise KeyboardInterrupt(f"interrupted; repeat the command with {flags} to continue") from None
            except (InputError, RunStoppedError):
                raise
            except (Exception, SystemExit) as error:
                custom = [name for name in (settings.strategy.name, settings.data.dataset) if ":" in name]
                if not custom:
                    raise
                raise RunStoppedError(f"{' on '.join(custom)}: {describe(error)}") from error
        metric = Metric.of(summary)
        print(
            f"{summary['strategy']} on {summary['dataset']}: {final_score(summary)} "
            f"({metric_number(metric, summary[metric.last10])} averaged over the last evaluations) "
            f"after {summary['rounds']} rounds, "
            f"{summary['time_s']:g} simulated s, {summary['uploads']} uploads{_troubles(summary)}; "
            f"{summary['wall_s']:.1f} s of real time on {'a GPU' if summary['device'] == 'cuda' else 'the CPU'}"
            f" with the trainer {summary['wall_trainer']}"
        )
        print_notes(summary["notes"])
        print_report(Study([Run.load(out)]), out)
        print(f"folder: {out}")
        check_ended([summary])


def _tell(note: str) -> None:
    print(f"note: {note}")


def _troubles(summary: dict[str, Any]) -> str:
    """Return the numbers of late, lost and rejected updates as text; empty if there are none."""
    lost = f", {summary['lost']} lost" if summary.get("lost") else ""
    late = f", {summary['misses']} of them late" if summary.get("misses") else ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary["rejected_by"].items())
    return late + lost + (f", {summary['rejected']} rejected ({reasons})" if reasons else "")


@dataclass(frozen=True)
class CompareCommand(_Learning):
    """Train several strategies on the same seeds and compare them. Writes a table and figures.

    Example: lesson compare --strategies lesson,fedavg --seeds 2
    """

    strategies: str = _experiment(
        "--strategies", type=STRATEGY, metavar="A,B,...", default="lesson,fedavg,fedcs", help="Strategies to compare."
    )
    seeds: int = _experiment("--seeds", type=WHOLE, default=3, help="Number of seeds, starting with --seed.")

    def run(self) -> None:
        from lesson.api import check_first_run, out_of_comparison
        from lesson.experiments.engines import make_engine
        from lesson.experiments.grid import compare_strategies
        from lesson.experiments.study import TABLE, write_table
        from lesson.report.study.compare_text import comparison_table
        from lesson.report.study.groups import title_of
        from lesson.report.study.sweep_text import failure_table
        from lesson.report.words import count
        from lesson.runs.trackers import checked_trackers

        trackers = checked_trackers(self.log)
        names = [name.strip() for name in self.strategies.split(",") if name.strip()]
        if not names or len(set(names)) != len(names):
            raise InputError(f"--strategies must be distinct names separated by commas, got '{self.strategies}'")
        if not 1 <= self.seeds <= 1000:
            raise InputError(f"--seeds must be from 1 to 1000, got {self.seeds}")
        changes, options = split_changes(self.set)
        if any(change.partition("=")[0].strip() == "strategy.name" for change in changes):
            raise InputError("strategy.name must not be set in a comparison; use --strategies")
        settings = self.settings(changes)
        out = self.out or out_of_comparison(settings)
        design, engine = compare_strategies(settings, names, self.seeds, options), make_engine(data_dir=self.data_dir)
        for note in check_first_run(design, out, data_dir=self.data_dir):
            _tell(note)
        flags = f"--out {out} --resume"
        study, _ = execute_design(design, out, engine, flags, on_error="stop", resume=self.resume, trackers=trackers)
        title = title_of(settings)
        write_table(study, out / TABLE)
        console = PipedConsole()
        failed = {name: len(failures) for name, failures in study.failures_by_strategy().items()}
        if failed:
            console.print(failure_table(study))
        console.print(comparison_table(study.table(), study.metric, f"{title}, {count(self.seeds, 'seed')}", failed))
        print_notes(note for run in study.runs for note in run.summary["notes"])
        if study.runs:
            self._draw(study, title, out)
            print_report(study, out)
        print(f"folder: {out}")
        check_failed(study, len(names) * self.seeds, flags)
        check_ended(run.summary for run in study.runs)

    def _draw(self, study: "Study", title: str, out: Path) -> None:
        from lesson.report.study.metric_figure import draw_comparison

        figures = draw_comparison(study, title, out)
        for path in figures:
            print(f"figure: {path}")
        if not figures:
            print("note: no figures, because no round ended within the limits")
