"""The command `lesson replay`."""

import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from lesson.cli.console import PipedConsole
from lesson.cli.parser import (
    DIR,
    FILE,
    SECONDS,
    SECONDS_OR_AUTO,
    STRATEGY,
    WHOLE,
    argument,
    data_dir_option,
    option,
)
from lesson.core.errors import InputError
from lesson.flight.check import check_recording
from lesson.flight.outcomes import NUM_REPLICATES
from lesson.flight.recording import read_recording
from lesson.flight.replay import Replay, replay
from lesson.report.page.document import as_json
from lesson.report.page.plan_page import check_page_path
from lesson.report.page.replay_page import replay_data, write_replay_page
from lesson.report.replay.text import accuracy_sentence, print_check, print_replay
from lesson.settings.settings import Settings
from lesson.strategies import split_changes

if TYPE_CHECKING:  # it imports torch, which takes seconds and is not needed for --help
    from lesson.experiments.study import Study

TRAINED = "Trained on the recorded clients"
UNTRAINED = (
    "strategies are ranked by plain updates per hour, which compares schedules, not models; to compare accuracy, train "
    "with --dataset or --task"
)

_replay = partial(option, heading="Replay")
_training = partial(option, heading="Training")
_output = partial(option, heading="Output")


@dataclass(frozen=True)
class ReplayCommand:
    """Simulate other strategies with the clients of a recording, and recommend one.

    Example: lesson replay flight.jsonl --html replay.html
    """

    recording: Path = argument(
        "recording", type=FILE, metavar="FLIGHT.jsonl", help="Recording of a federation, flight.jsonl."
    )
    strategies: str = _replay(
        "--strategies",
        type=STRATEGY,
        metavar="A,B,...",
        default="lesson,fedavg,fedcs,fedbuff",
        help="Strategies to simulate.",
    )
    deadline: float | Literal["auto"] = _replay(
        "--deadline",
        type=SECONDS_OR_AUTO,
        metavar="S|auto",
        default="auto",
        help="Deadline of the strategies that have one; auto tries several and chooses the one with which LESSON has "
        "the most updates per hour.",
    )
    set: tuple[str, ...] = _replay(
        "--set",
        multiple=True,
        metavar="KEY=VALUE",
        help="Strategy option, such as fedbuff.concurrency=5; repeatable.",
    )
    replicates: int = _replay(
        "--replicates", type=WHOLE, default=NUM_REPLICATES, help="Number of simulations per strategy, for intervals."
    )
    time_budget: float | None = _replay(
        "--time-budget",
        type=SECONDS,
        show_default="length of the recording, but at least 10 and at most 200 times what slow clients take",
        help="Length of a simulation in seconds.",
    )
    seed: int = _replay("--seed", type=WHOLE, default=0, help="Random seed.")
    check: bool = _replay(
        "--check",
        is_flag=True,
        help="Only predict the second half of the recording from the first, and compare; --set then sets options of "
        "the recorded strategy.",
    )
    dataset: str | None = _training(
        "--dataset",
        metavar="NAME",
        help="Also train a built-in task on the recorded clients; 'lesson tasks' lists them.",
    )
    task: str | None = _training(
        "--task", metavar="MODULE:FUNCTION", help="Also train your own task: a function that returns a lesson.Task."
    )
    seeds: int = _training("--seeds", type=WHOLE, default=3, help="Number of seeds to train with.")
    out: Path | None = _training(
        "--out",
        type=DIR,
        show_default="runs/replay-NAME",
        help="Output folder for training runs and fitted clients.",
    )
    data_dir: Path | None = data_dir_option(heading="Training")
    html: Path | None = _output("--html", type=FILE, help="Also write a page with figures and code for a Flower app.")
    json: bool = _output("--json", is_flag=True, help="Print JSON instead of tables.")

    def run(self) -> None:
        if self.check:
            self._check()
            return
        if self.out is not None and not self._trains:
            raise InputError("--out has no effect without --dataset or --task")
        if self.html is not None:
            check_page_path(self.html)
        with Console(stderr=True).status("Fitting the fleet") as status:
            result = replay(
                self.recording,
                [name.strip() for name in self.strategies.split(",") if name.strip()],
                self.deadline,
                options=self._options,
                num_replicates=self.replicates,
                time_budget_s=self.time_budget,
                seed=self.seed,
                progress=status.update,
            )
        study = self._train(result) if self._trains else None
        data = replay_data(result) | {"notes": result.notes, "trained": None}
        if study is None:
            data["notes"].append(UNTRAINED)
        else:
            from lesson.report.results import results_table

            data["trained"] = results_table(study, TRAINED).to_data()
            data["advice"]["sentence"] += f" {accuracy_sentence(study, result.advice)}"
        if self.html is not None:
            write_replay_page(self.html, result, data, shlex.join(["lesson", *sys.argv[1:]]))
        if self.json:
            print(as_json(data))
            return
        print_replay(result, data["advice"]["sentence"], data["notes"], PipedConsole())
        if study is not None:
            self._print_study(study)
        if self.html is not None:
            print(f"page: {self.html}")

    @property
    def _trains(self) -> bool:
        """Whether models are trained as well."""
        return self.dataset is not None or self.task is not None

    @property
    def _options(self) -> dict[str, dict[str, Any]]:
        """Options of individual strategies, from --set."""
        changes, options = split_changes(self.set)
        if changes:
            raise InputError(f"--set must name a strategy's option, such as fedbuff.concurrency=5, got '{changes[0]}'")
        return options

    def _check(self) -> None:
        if self.html is not None or self.json or self._trains:
            raise InputError("--check cannot be combined with --html, --json, --dataset or --task: it prints a table")
        with Console(stderr=True).status("Predicting the second half") as status:
            check = check_recording(
                read_recording(self.recording),
                options=self._options,
                num_replicates=self.replicates,
                seed=self.seed,
                progress=status.update,
            )
        print_check(check, self.recording.name, PipedConsole())

    def _train(self, result: Replay) -> "Study":
        """Train every strategy on the fitted clients, with one draw of their times."""
        from lesson.api import compare
        from lesson.flight.files import write_fleet

        candidates = [outcome.candidate for outcome in result.outcomes if not outcome.problem]
        if not candidates:
            raise InputError(f"no strategy can be trained; {result.notes[0]}")
        files = write_fleet(result.fitted, self._out / "fleet", seed=self.seed)
        limits = {"deadline_s": candidates[0].deadline_s, "time_budget_s": result.horizon_s, "seed": self.seed}
        dataset = {} if self.dataset is None else {"dataset": self.dataset}
        return compare(
            [candidate.strategy for candidate in candidates],
            num_seeds=self.seeds,
            out=self._out / "runs",
            options={candidate.strategy: candidate.options for candidate in candidates},
            data_dir=self.data_dir,
            task=self.task,
            settings=Settings(weighting="samples", **files, **limits, **dataset),
        )

    @property
    def _out(self) -> Path:
        return self.out or Path("runs") / f"replay-{self.recording.stem}"

    def _print_study(self, study: "Study") -> None:
        from lesson.report.results import failure_table, printed_table

        console = PipedConsole()
        if study.failures:
            console.print(failure_table(study).to_rich())
        for part in printed_table(study, TRAINED).parts(console.width):
            console.print(part.to_rich())
        print(f"folder: {self._out}")
