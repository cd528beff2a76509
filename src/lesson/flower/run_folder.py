"""The run folder of an app with its own clients: its settings, and how the run is executed, resumed and reported."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.numpy
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Result

from lesson.core.errors import InputError
from lesson.core.files import write_whole
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.fleet.csv_files import fleet_csv
from lesson.flower.app_run import AppRun, restore_metrics
from lesson.flower.arrays import Layout
from lesson.flower.identity import NODES
from lesson.flower.replies import tell
from lesson.report.page.study_page import REPORT, write_study_page
from lesson.report.words import final_score
from lesson.runs.execute import execute_in
from lesson.runs.folder import RunFolder
from lesson.runs.read_back import each_line
from lesson.runs.trackers import Tracker
from lesson.settings.sections import GuardSettings, ServerSettings
from lesson.settings.settings import Settings, without_none
from lesson.strategies import STRATEGIES, option_values
from lesson.strategies.base import Strategy

OWN_APP = "own app"
"""Data set in the settings of a run whose data only its clients know."""
RESUME, ANOTHER = "pass resume=True to continue it", "choose another folder for out"
CHECKPOINT_EVERY_S = 20.0


def write_latencies_and_report(folder: RunFolder, latencies: str) -> None:
    """Write latencies.csv and report.html into the folder of a run on Flower that has finished."""
    write_whole(folder.path / "latencies.csv", latencies.encode())
    write_study_page(Study([Run.load(folder.path)]), folder.path / REPORT)
    tell(f"report: {folder.path / REPORT}")
    tell(f"folder: {folder.path}")


@dataclass(eq=False)
class AppFolder:
    """The run folder of an app. `settings` returns the settings of its run, given the number of nodes at the start."""

    path: Path
    resume: bool
    trackers: Sequence[Tracker]
    settings: Callable[[int], Settings]

    def __post_init__(self) -> None:
        self.path = self.path.absolute()
        self._folder = RunFolder(self.path, RESUME, ANOTHER)
        begun = self._folder.begun
        self.num_nodes = None if begun is None else begun.fleet.num_clients
        """Number of nodes with which the run in the folder was started; None if there is none."""
        self._begun = self._folder.check(self.settings(self.num_nodes or 1), self.resume, may_extend=True)

    @property
    def nodes(self) -> Path:
        """The file that lists the clients."""
        return self._folder.path / NODES

    @property
    def is_begun(self) -> bool:
        """Whether there is a checkpoint from which the run continues."""
        return self._folder.is_resumable

    def finished(self, layout: Layout) -> Result | None:
        """Return the result of the run in the folder if it has finished and is as long as it should be."""
        folder = self._folder
        if self._begun is None or self._begun.is_shorter or (summary := folder.finished()) is None:
            return None
        tell(f"the run in {folder.path} has already finished; it is not executed again")
        arrays = self._arrays(layout)
        result = Result(arrays=arrays)
        for line in self.lines():
            restore_metrics(result, line)
        _log_score(summary)
        return result

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl."""
        return list(each_line(self._folder.metrics))

    @property
    def recorded(self) -> tuple[str, float]:
        """Name and deadline of the strategy, for the header of the recording."""
        strategy = self.settings(self.num_nodes or 1).strategy
        return strategy.name, strategy.deadline_s

    def execute(self, run: AppRun, num_nodes: int) -> None:
        """Execute a run, or the rest of it, and write its report."""
        settings = self.settings(self.num_nodes or num_nodes)
        summary = execute_in(
            self._folder,
            settings,
            lambda _: (settings, run),
            resume=self.resume,
            may_extend=True,
            trackers=self.trackers,
        )
        write_latencies_and_report(self._folder, fleet_csv(run.fleet))
        _log_score(summary)

    def _arrays(self, layout: Layout) -> ArrayRecord:
        """Return the final model."""
        path = self._folder.model
        try:
            found = safetensors.numpy.load(path.read_bytes())
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise InputError(f"{path} cannot be read: {error}; restore a copy, or {ANOTHER}") from None
        if found.keys() != set(layout.names):
            raise InputError(f"{path} holds a different model than initial_arrays; {ANOTHER}")
        return ArrayRecord({name: Array(found[name]) for name in layout.names})


def app_settings(
    strategy: Strategy,
    deadline_s: float,
    *,
    num_clients: int,
    num_rounds: int,
    seed: int,
    lr: float,
    lr_cap: float,
    model_bits: float,
    server: ServerSettings,
    guards: GuardSettings,
) -> Settings:
    """Return what is known about a run of an app, for its config.toml. Its data and its model are not known."""
    name, options = described(strategy)
    return Settings(
        fleet={"num_clients": num_clients},
        training={"learning_rate": lr, "lr_cap": lr_cap, "weighting": "samples"},
        data={"dataset": OWN_APP, "split": "natural"},
        upload={"model_bits": model_bits},
        server=server.model_dump(exclude_none=True),
        strategy={"name": name, "deadline_s": deadline_s, **options},
        run={
            "seed": seed,
            "rounds": num_rounds,
            "time_budget_s": math.inf,
            "device": "cpu",
            "precision": "float32",
            "checkpoint_every_s": CHECKPOINT_EVERY_S,
        },
        guards=guards.model_dump(exclude_none=True),
    )


def described(strategy: Strategy) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a strategy and those of its options that a settings file can hold."""
    kind = type(strategy)
    names = {built_in: name for name, built_in in STRATEGIES.items()}
    return names.get(kind, f"{kind.__module__}:{kind.__qualname__}"), without_none(option_values(strategy))


def _log_score(summary: Mapping[str, Any]) -> None:
    tell(f"{final_score(summary)} after {summary['rounds']} rounds, {summary['time_s']:g} s")
