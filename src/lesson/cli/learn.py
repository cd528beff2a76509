"""The commands `lesson run` and `lesson compare`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lesson.cli.console import check_ended, print_notes, show_study
from lesson.cli.parser import (
    DIR,
    NUMBER,
    SECONDS,
    STRATEGY,
    WHOLE,
    data_dir_option,
    lanes_option,
    latencies_option,
    log_option,
    option,
    scenario_option,
)
from lesson.core.errors import InputError, RunStoppedError, describe
from lesson.settings.loading import check_set_once, load_settings
from lesson.settings.settings import Settings
from lesson.strategies import options_of, split_changes

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
        "--resume/--no-resume", default=True, help="Resume unfinished runs in the output folder, or stop with an error."
    )
    log: tuple[str, ...] = log_option(heading="Output")
    device: str | None = _machine(
        "--device", metavar="auto|cpu|cuda", show_default="auto", help="Device to train on; auto prefers a GPU."
    )
    data_dir: Path | None = data_dir_option(heading="Machine")

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of `api.run` and `api.compare` that are not settings."""
        parts = {"out": self.out, "resume": self.resume, "data_dir": self.data_dir}
        return parts | {"task": self.task, "trackers": self.log}

    def settings(self, changes: Sequence[str], strategy: str | None = None) -> Settings:
        """Return the settings that the flags and --set define."""
        flags = {
            "data.dataset": self.dataset or self.task,  # a task overrides the data set of a file, too
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
        from lesson import api
        from lesson.experiments.study import Study
        from lesson.report.page.study_page import REPORT, write_study_page
        from lesson.report.words import final_score, metric_number

        changes, own = split_changes(self.set)
        settings = self.settings(changes, self.strategy)
        strategy = settings.strategy.name
        options = options_of([strategy], settings.strategy.options, own)[strategy]
        try:
            run = api.run(settings=settings, options=options, **self.how)
        except (InputError, RunStoppedError):
            raise
        except (Exception, SystemExit) as error:
            names = strategy, settings.data.dataset, settings.upload.compression
            custom = [name for name in names if ":" in name]
            if not custom:
                raise
            raise RunStoppedError(f"{' on '.join(custom)}: {describe(error)}") from error
        summary, metric, path = run.summary, run.metric, run.path
        assert path is not None, "only archived runs have no folder"
        print(
            f"{summary['strategy']} on {summary['dataset']}: {final_score(summary)} "
            f"({metric_number(metric, summary[metric.last10])} averaged over the last evaluations) "
            f"after {summary['rounds']} rounds, "
            f"{summary['time_s']:g} simulated s, {summary['uploads']} uploads{_troubles(summary)}; "
            f"{summary['wall_s']:.1f} s of real time on {'a GPU' if summary['device'] == 'cuda' else 'the CPU'}"
            f" with the trainer {summary['wall_trainer']}"
        )
        print_notes(summary["notes"])
        write_study_page(Study([run]), path / REPORT)
        print(f"report: {path / REPORT}")
        print(f"folder: {path}")
        check_ended([summary])


def _troubles(summary: dict[str, Any]) -> str:
    """Return the numbers of late, lost and rejected updates as text; empty if there are none."""
    lost = f", {summary['lost']} lost" if summary.get("lost") else ""
    late = f", {summary['misses']} of them late" if summary.get("misses") else ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary["rejected_by"].items())
    return late + lost + (f", {summary['rejected']} rejected ({reasons})" if reasons else "")


@dataclass(frozen=True)
class CompareCommand(_Learning):
    """Train several strategies on the same seeds and compare them. Writes a table and a report.

    Example: lesson compare --strategies lesson,fedavg --seeds 2
    """

    strategies: str = _experiment(
        "--strategies", type=STRATEGY, metavar="A,B,...", default="lesson,fedavg,fedcs", help="Strategies to compare."
    )
    seeds: int = _experiment("--seeds", type=WHOLE, default=3, help="Number of seeds, starting with --seed.")
    lanes: int | None = lanes_option(heading="Machine")

    def run(self) -> None:
        from lesson import api

        names = [name.strip() for name in self.strategies.split(",") if name.strip()]
        changes, options = split_changes(self.set)
        settings = self.settings(changes, names[0] if names else None)
        how = self.how | {"num_seeds": self.seeds, "num_lanes": self.lanes}
        study = api.compare(names, settings=settings, options=options, **how)
        show_study(study)
