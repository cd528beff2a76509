"""The run folder of an app with its own clients: its settings, and how the run is executed, resumed and reported."""

import math
from collections.abc import Callable, Mapping, Sequence
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
from lesson.flower.app_metrics import restore_metrics
from lesson.flower.app_run import AppRun
from lesson.flower.arrays import Layout
from lesson.flower.identity import NODES
from lesson.flower.recorder import Recorder
from lesson.flower.replies import tell
from lesson.report.page.study_page import REPORT, write_study_page
from lesson.report.words import final_score
from lesson.runs import folder as runs
from lesson.runs.execute import execute_in
from lesson.runs.read_back import each_line
from lesson.runs.summary import OWN_APP
from lesson.runs.trackers import Tracker, checked_trackers
from lesson.settings.sections import GuardSettings, ServerSettings, UploadSettings
from lesson.settings.settings import Settings, without_none
from lesson.strategies import STRATEGIES, option_values
from lesson.strategies.base import Strategy

RESUME, ANOTHER = "pass resume=True to continue it", "choose another folder"
CHECKPOINT_EVERY_S = 20.0
BEST, LATENCIES = "best.safetensors", "latencies.csv"
MAY_CHANGE = ("strategy.deadline_s",)
"""Settings that may change when a run is resumed."""


class RunFolder:
    """The folder of a run of a Flower app: checkpoints, metrics, a recording on the wall clock, and a report.

    Args:
        out: Path of the folder. A relative path starts in the working folder of the server app.
        resume: Whether to continue the run in the folder, optionally with more rounds or another deadline than before;
            otherwise, an unfinished run is an error.
        trackers: Trackers by name, `module:Class` or as objects, see `lesson.run`.
        readmit: Names of clients that were excluded and take part again when the run is resumed.
    """

    def __init__(
        self,
        out: Path | str,
        *,
        resume: bool = False,
        trackers: Sequence[Tracker | str] = (),
        readmit: Sequence[str] = (),
    ) -> None:
        if not isinstance(out, Path | str) or out == "":
            raise InputError(f"out must be the path of a folder, got {out!r}")
        if isinstance(readmit, str) or (readmit and not resume):
            raise InputError(f"readmit must be a list of names of clients, together with resume=True, got {readmit!r}")
        self.path, self.resume, self.trackers = Path(out).absolute(), resume, checked_trackers(trackers)
        self.readmit = tuple(map(str, readmit))


class OpenFolder:
    """The folder of a run that begins or is resumed; raises InputError if it holds another run.

    `settings` returns the settings of the run for a number of nodes at the start.
    """

    def __init__(self, given: RunFolder, settings: Callable[[int], Settings]) -> None:
        self.given, self._settings = given, settings
        self._files = runs.RunFolder(given.path, RESUME, ANOTHER)
        before = self._files.begun
        self.num_nodes = None if before is None else before.fleet.num_clients
        """Number of nodes with which the run in the folder was started; None if there is none."""
        self._begun = self._files.check(
            settings(self.num_nodes or 1), given.resume, may_extend=True, may_change=MAY_CHANGE
        )
        if given.readmit and (summary := self._files.finished()) is not None and summary["ended_early"]:
            self._files.summary.unlink()  # with these clients, the run may continue

    @property
    def nodes(self) -> Path:
        """The file that lists the clients."""
        return self._files.path / NODES

    def finished(self, layout: Layout, keep_best: bool) -> Result | None:
        """Return the result of the run in the folder if it has finished with the requested number of rounds."""
        if self._begun is None or self._begun.is_shorter or (summary := self._files.finished()) is None:
            return None
        tell(f"the run in {self._files.path} has already finished; it is not executed again")
        best = self.best(layout) if keep_best else None
        result = Result(arrays=best or self._read(self._files.model, layout))
        for line in self.lines():
            restore_metrics(result, line)
        _log_score(summary)
        return result

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl."""
        return list(each_line(self._files.metrics))

    def recorder(self) -> Recorder:
        """Return the recorder of the run."""
        strategy = self._settings(self.num_nodes or 1).strategy
        return Recorder(self._files.recording, strategy.name, strategy.deadline_s)

    def execute(self, run: AppRun, num_nodes: int) -> None:
        """Execute a run, or the rest of it, and write its report."""
        settings, files = self._settings(self.num_nodes or num_nodes), self._files
        summary = execute_in(
            files,
            settings,
            lambda _: (settings, run),
            resume=self.given.resume,
            may_extend=True,
            may_change=MAY_CHANGE,
            after_load=run.after_load,
            trackers=self.given.trackers,
        )
        write_whole(files.path / LATENCIES, fleet_csv(run.fleet, run.has_latency.tolist()).encode())
        write_study_page(Study([Run.load(files.path)]), files.path / REPORT)
        tell(f"report: {files.path / REPORT}")
        tell(f"folder: {files.path}")
        _log_score(summary)

    def save_best(self, arrays: ArrayRecord) -> None:
        """Write the best model so far."""
        write_whole(
            self._files.path / BEST,
            safetensors.numpy.save({name: array.numpy() for name, array in arrays.items()}),
        )

    def best(self, layout: Layout) -> ArrayRecord | None:
        """Return the best model so far; None if there is none."""
        path = self._files.path / BEST
        return self._read(path, layout) if path.exists() else None

    def _read(self, path: Path, layout: Layout) -> ArrayRecord:
        """Return the model in a file."""
        try:
            arrays = safetensors.numpy.load(path.read_bytes())
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise InputError(f"{path} cannot be read: {error}; restore a copy, or {ANOTHER}") from None
        if arrays.keys() != set(layout.names):
            raise InputError(f"{path} holds a different model than initial_arrays; {ANOTHER}")
        return ArrayRecord({name: Array(arrays[name]) for name in layout.names})


def app_settings(
    strategy: Strategy,
    deadline_s: float,
    *,
    num_clients: int,
    num_rounds: int,
    seed: int,
    lr: float,
    lr_cap: float,
    local_steps: int,
    upload: UploadSettings,
    server: ServerSettings,
    guards: GuardSettings,
) -> Settings:
    """Return the settings of a run of an app, for its config.toml; its data and its model are unknown."""
    name, options = described(strategy)
    return Settings(
        fleet={"num_clients": num_clients},
        training={"learning_rate": lr, "lr_cap": lr_cap, "local_steps": local_steps, "weighting": "samples"},
        data={"dataset": OWN_APP, "split": "natural"},
        upload=upload.model_dump(exclude_none=True),
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
    tell(f"{final_score(summary)} after {summary['rounds']} rounds, {summary['time_s']:.1f} s")
