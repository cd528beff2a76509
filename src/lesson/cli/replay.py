"""The command `lesson replay`."""

import math
import shlex
import sys
from dataclasses import dataclass, replace
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
from lesson.flight.advice import choose_deadline_s
from lesson.flight.check import check_recording
from lesson.flight.fit import FittedFleet, fit
from lesson.flight.recording import Recording, read_recording
from lesson.flight.replay import NUM_REPLICATES, Candidate, Replay, replay
from lesson.report.page.document import as_json
from lesson.report.page.replay_page import replay_data, write_replay_page
from lesson.report.replay.text import accuracy_rows, accuracy_sentence, print_check, print_replay
from lesson.settings.settings import Settings
from lesson.strategies import options_of, split_changes

if TYPE_CHECKING:  # it imports torch, which takes seconds and is not needed for --help
    from lesson.experiments.study import Study

UNTRAINED = (
    "strategies are ranked by plain updates per hour, which compares schedules, not models; to compare accuracy, train "
    "with --dataset or --task"
)

NO_TIMES = (
    "the compute times of clients are unknown; for strategies that need them, let clients report their times with "
    "lesson.flower.report_times"
)

_replay = partial(option, heading="Replay")
_training = partial(option, heading="Training")
_output = partial(option, heading="Output")


@dataclass(frozen=True)
class ReplayCommand:
    """Simulate other strategies on the clients of a recording. Prints what they would have done, and recommends one.

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
        help="Instead, predict the second half of the recording from the first, and compare; --set then sets options "
        "of the recorded strategy.",
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
        self._check_options()
        recording = read_recording(self.recording)
        if self.check:
            self._print_check(recording)
            return
        fitted = fit(recording)
        if self.html is not None:
            from lesson.report.page.plan_page import check_page_path

            check_page_path(self.html)
        self._candidates(1.0)  # a wrong name fails before the search for a deadline
        with Console(stderr=True).status("Fitting the fleet") as status:
            deadline_s = self._deadline_s(fitted, status.update)
            candidates = self._candidates(deadline_s)
            result = replay(
                fitted,
                candidates,
                num_replicates=self.replicates,
                horizon_s=self.time_budget,
                seed=self.seed,
                tell=lambda done: status.update(f"Simulating {len(candidates)} strategies: {done}/{self.replicates}"),
            )
        advice = result.advice
        study = self._train(result) if self.trains else None
        trained = [] if study is None else accuracy_rows(study)
        if study is not None:
            advice = replace(advice, sentence=f"{advice.sentence} {accuracy_sentence(study, advice)}".strip())
        notes = list(fitted.notes)
        if not fitted.split_is_known and any(outcome.problem for outcome in result.outcomes):
            notes.append(NO_TIMES)
        if not self.trains:
            notes.append(UNTRAINED)
        if self.html is not None:
            command = shlex.join(["lesson", *sys.argv[1:]])
            write_replay_page(self.html, result, advice, notes=notes, command=command, trained=trained)
        if self.json:
            print(as_json(replay_data(result, advice) | {"notes": notes, "trained": trained}))
            return
        print_replay(result, advice, notes, PipedConsole())
        if study is not None:
            self._print_study(study)
        if self.html is not None:
            print(f"page: {self.html}")

    @property
    def trains(self) -> bool:
        """Whether models are trained as well."""
        return self.dataset is not None or self.task is not None

    def _train(self, result: Replay) -> "Study":
        """Train every strategy on the fitted clients, with one draw of their times."""
        from lesson import api
        from lesson.flight.files import write_fleet

        candidates = [outcome.candidate for outcome in result.outcomes if not outcome.problem]
        if not candidates:
            first = result.outcomes[0]
            raise InputError(f"no strategy can be trained; {first.candidate.label} cannot run: {first.problem}")
        files = write_fleet(result.fitted, self._out / "fleet", seed=self.seed)
        limits = {"deadline_s": candidates[0].deadline_s, "time_budget_s": result.horizon_s, "seed": self.seed}
        data = {} if self.dataset is None else {"dataset": self.dataset}
        return api.compare(
            [one.strategy for one in candidates],
            num_seeds=self.seeds,
            out=self._out / "runs",
            options={one.strategy: one.options for one in candidates},
            data_dir=self.data_dir,
            task=self.task,
            settings=Settings(weighting="samples", **files, **limits, **data),
        )

    @property
    def _out(self) -> Path:
        return self.out or Path("runs") / f"replay-{self.recording.stem}"

    def _print_study(self, study: "Study") -> None:
        from lesson.report.study.compare_text import comparison_table

        failed = {name: len(failures) for name, failures in study.failures_by_strategy().items()}
        console = PipedConsole()
        console.print(comparison_table(study.table(), study.metric, "Trained on the recorded clients", failed))
        print(f"folder: {self._out}")

    def _check_options(self) -> None:
        if isinstance(self.deadline, float) and not self.deadline > 0:
            raise InputError(f"--deadline must be > 0, got {self.deadline:g}")
        if self.time_budget is not None and not 0 < self.time_budget < math.inf:
            raise InputError(f"--time-budget must be > 0 and finite, got {self.time_budget:g}")
        if self.dataset is not None and self.task is not None:
            raise InputError(f"--dataset and --task must not both be given, got '{self.dataset}' and '{self.task}'")
        if not 1 <= self.seeds <= 1000:
            raise InputError(f"--seeds must be from 1 to 1000, got {self.seeds}")
        if self.out is not None and not self.trains:
            raise InputError("--out has no effect unless models are trained; give --dataset or --task")
        if self.seed < 0:
            raise InputError(f"--seed must be >= 0, got {self.seed}")
        if self.check and (self.html is not None or self.json or self.trains):
            raise InputError("--check cannot be combined with --html, --json, --dataset or --task: it prints a table")

    def _deadline_s(self, fitted: FittedFleet, tell: Any) -> float:
        if self.deadline != "auto":
            return self.deadline
        return choose_deadline_s(
            fitted,
            horizon_s=self.time_budget,
            seed=self.seed,
            tell=lambda one: tell(f"Trying a deadline of {one:g} s"),
        )

    def _candidates(self, deadline_s: float) -> list[Candidate]:
        """Return the strategies to simulate; raise InputError if one is unknown or needs training."""
        names = [name.strip() for name in self.strategies.split(",") if name.strip()]
        if not names or len(set(names)) != len(names):
            raise InputError(f"--strategies must be distinct names separated by commas, got '{self.strategies}'")
        options = options_of(names, {}, self._options)
        candidates = [Candidate(name, deadline_s, options[name]) for name in names]
        for candidate in candidates:
            candidate.make()
        return candidates

    @property
    def _options(self) -> dict[str, dict[str, Any]]:
        """Options of single strategies, from --set."""
        changes, own = split_changes(self.set)
        if changes:
            raise InputError(f"--set must name a strategy's option, such as fedbuff.concurrency=5, got '{changes[0]}'")
        return own

    def _print_check(self, recording: Recording) -> None:
        with Console(stderr=True).status("Predicting the second half") as status:
            check = check_recording(
                recording,
                options=self._options,
                num_replicates=self.replicates,
                seed=self.seed,
                tell=lambda done: status.update(f"Predicting the second half: {done}/{self.replicates}"),
            )
        print_check(check, recording.name, PipedConsole())
