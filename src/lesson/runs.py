"""A run and its folder: settings, a line per round, checkpoints, and going on after a kill with the same bits.

A folder holds config.toml, metrics.jsonl, checkpoint.safetensors while the run goes on, and summary.json with
model.safetensors when it is done. Every file but metrics.jsonl is written aside and renamed; metrics.jsonl grows by
whole lines and is cut back to the last checkpoint when a run is resumed.
"""

import contextlib
import errno
import fcntl
import importlib.metadata
import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import safetensors.numpy

import lesson
from lesson.arrays import with_prefix
from lesson.errors import InputError, RunStoppedError
from lesson.learn.backend import on_device
from lesson.learn.build import build
from lesson.learn.evaluate import PendingScore
from lesson.learn.learner import Learner
from lesson.learn.process import settle_process
from lesson.records import RoundRecord
from lesson.settings import Settings, load_settings, to_toml
from lesson.simulate import Simulation
from lesson.summary import summarise
from lesson.tiers import TOLERANCE

Progress = Callable[[dict[str, Any]], None]


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics = path / "config.toml", path / "metrics.jsonl"
        self.summary, self.model = path / "summary.json", path / "model.safetensors"
        self.checkpoint = path / "checkpoint.safetensors"

    def check(self, settings: Settings, resume: bool) -> None:
        """Raise if the folder belongs to something else, or to a run that is to be resumed. Writes nothing."""
        if self.config.exists():
            if not settings.gives_the_same(load_settings(str(self.config))):
                raise InputError(f"{self.path} belongs to a run with other settings; name another folder with --out")
            if not resume and not self.summary.exists():
                raise InputError(f"{self.path} holds a run that has not ended; --resume goes on with it")
        elif self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, not a folder; name another with --out")
        elif self.path.exists() and any(self.path.glob("[!.]*")):
            raise InputError(f"{self.path} is not empty and holds no run; name another folder with --out")

    def settled(self, settings: Settings) -> Settings:
        """The settings with device and precision named: as this folder's run began, or what there is here."""
        if not self.config.exists():
            return on_device(settings)
        begun = load_settings(str(self.config)).run
        chosen = {
            name: getattr(begun, name) for name in ("device", "precision") if getattr(settings.run, name) == "auto"
        }
        try:
            return on_device(settings.model_copy(update={"run": settings.run.model_copy(update=chosen)}))
        except InputError as error:
            raise InputError(f"{self.path} holds a run that was begun on a GPU: {error}") from None

    def begin(self, settings: Settings) -> None:
        """Make the folder this run's own."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path} cannot be made: {error.strerror}; name another folder with --out") from None
        for left in self.path.glob(".*.aside"):  # by a process that was killed while writing
            left.unlink()
        if not self.config.exists():
            self._write(self.config, to_toml(settings.to_sections() | {"versions": _versions()}).encode())

    def finished(self) -> dict[str, Any] | None:
        """The summary of a run that has ended."""
        if not self.summary.exists():
            return None
        self.checkpoint.unlink(missing_ok=True)  # a kill may have come before this was done
        try:
            summary: dict[str, Any] = json.loads(self.summary.read_text())
        except ValueError:
            raise InputError(f"{self.summary} is damaged; remove the folder and run again") from None
        return summary

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Nobody else writes this folder meanwhile."""
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.path} is being written by another process; wait for it or end it") from None
            try:
                yield
            finally:
                (self.path / ".lock").unlink(missing_ok=True)

    def append(self, line: dict[str, Any]) -> None:
        """Add one line, whole, to the metrics."""
        content = (json.dumps(line, allow_nan=False) + "\n").encode()
        file = os.open(self.metrics, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(file).st_size
            if os.write(file, content) != len(content):
                os.truncate(file, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RunStoppedError(f"{self.metrics} cannot be written: {error.strerror}; --resume goes on") from None
        finally:
            os.close(file)

    def save(self, simulation: Simulation, learner: Learner) -> None:
        """Keep where the run stands."""
        values, arrays = simulation.state()
        with self.metrics.open("rb") as file:
            os.fsync(file.fileno())
            values["metrics_bytes"] = os.fstat(file.fileno()).st_size
        tensors = {f"simulation.{name}": np.ascontiguousarray(array) for name, array in arrays.items()}
        tensors |= {f"version.{name}": vector for name, vector in learner.state().items()}
        self._write(self.checkpoint, safetensors.numpy.save(tensors, {"state": json.dumps(values, allow_nan=False)}))

    def load(self, simulation: Simulation, learner: Learner) -> None:
        """Go on from the checkpoint, or from the beginning if there is none yet."""
        size = 0
        if self.checkpoint.exists():
            try:
                with safetensors.safe_open(self.checkpoint, "numpy") as file:
                    values = json.loads(file.metadata()["state"])
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            except (safetensors.SafetensorError, OSError, KeyError, ValueError) as error:
                raise InputError(f"{self.checkpoint} is damaged ({error}); remove the folder and run again") from None
            size = values["metrics_bytes"]
            if not self.metrics.exists() or self.metrics.stat().st_size < size:
                raise InputError(f"{self.metrics} has lost lines since the checkpoint; remove the folder and run again")
            simulation.restore(values, with_prefix(tensors, "simulation."))
            learner.restore(with_prefix(tensors, "version."))
        if self.metrics.exists():
            os.truncate(self.metrics, size)

    def finish(self, simulation: Simulation, learner: Learner, summary: dict[str, Any]) -> None:
        """Keep the model and the summary; the checkpoint is not needed any more."""
        self._write(self.model, safetensors.numpy.save(learner.parameters(simulation.version)))
        self._write(self.summary, (json.dumps(summary, allow_nan=False, indent=2) + "\n").encode())
        self.checkpoint.unlink(missing_ok=True)

    def _write(self, path: Path, content: bytes) -> None:
        """Put a file into place whole."""
        aside = path.with_name(f".{path.name}.aside")
        try:
            with aside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise InputError(f"{path} cannot be written: {error.strerror}") from None


def execute(
    settings: Settings,
    path: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """Run what the settings say in a folder and return the summary; a run that has ended is not run again.

    `parts` go to `learn.build.build`: a data folder, the number of threads, a data set or a model of one's own.
    """
    folder = RunFolder(path)
    folder.check(settings, resume)
    if (summary := folder.finished()) is not None:
        return summary
    settings = folder.settled(settings)
    settle_process()
    begin = time.perf_counter()
    simulation, learner = build(settings, **parts)
    try:
        folder.begin(settings)
        with folder.owned():
            folder.load(simulation, learner)
            _run(settings, simulation, learner, folder, progress)
            score = learner.score(simulation.version)
            wall_s = round(time.perf_counter() - begin, 3)
            summary = summarise(settings, folder.metrics, score.accuracy, score.loss) | {"wall_s": wall_s}
            folder.finish(simulation, learner, summary)
        return summary
    finally:
        learner.close()


def _run(
    settings: Settings, simulation: Simulation, learner: Learner, folder: RunFolder, progress: Progress | None
) -> None:
    """Round after round until the limit, with checkpoints by the clock on the wall and when interrupted."""
    limits, saved = settings.run, time.perf_counter()
    lines = _Lines(folder, progress)
    with _Interrupt() as interrupt:
        while not simulation.over and (limits.rounds is None or simulation.round < limits.rounds):
            record = simulation.step(limits.time_budget_s)
            if record is None:
                break
            due = _crosses_grid(record, limits.eval_every_s)
            lines.add(metrics_line(record), learner.begin_score(simulation.version) if due else None)
            if interrupt.asked or time.perf_counter() - saved >= limits.checkpoint_every_s:
                lines.settle()
                folder.save(simulation, learner)
                saved = time.perf_counter()
            if interrupt.asked:
                raise KeyboardInterrupt
        lines.settle()


class _Lines:
    """Lines on their way into a folder. One whose score is still worked out holds up those after it."""

    def __init__(self, folder: RunFolder, progress: Progress | None) -> None:
        self._folder, self._progress = folder, progress
        self._held: list[dict[str, Any]] = []
        self._score: PendingScore | None = None

    def add(self, line: dict[str, Any], score: PendingScore | None) -> None:
        """Take a line, and its score if it has one."""
        if score is not None:
            self.settle()
            self._score = score
        self._held.append(line)
        if self._score is None or self._score.ready():
            self.settle()

    def settle(self) -> None:
        """Write down all lines, waiting for the score if need be."""
        if self._score is not None:
            score, self._score = self._score.result(), None
            self._held[0] |= {"accuracy": score.accuracy, "loss": score.loss}
        for line in self._held:
            self._folder.append(line)
            if self._progress is not None:
                self._progress(line)
        self._held.clear()


class _Interrupt:
    """Notes Ctrl-C instead of raising in the middle of a round; a second one raises."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)
        if self.asked and kind is None:
            raise KeyboardInterrupt

    def _note(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def metrics_line(record: RoundRecord) -> dict[str, Any]:
    """A round as it is written down."""
    energy = [record.compute_j, record.transmit_j]
    return {
        "round": record.round,
        "time_s": record.end_s,
        "uploads": record.uploads,
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "energy_j": None if None in energy else sum(energy),  # type: ignore[arg-type]
        "staleness": float(record.staleness.mean()) if len(record.staleness) else None,
    } | ({"note": record.note} if record.note else {})


def _crosses_grid(record: RoundRecord, every_s: float) -> bool:
    """Whether an evaluation is due: a multiple of the interval lies in the round."""
    return int(record.end_s * (1 + TOLERANCE) / every_s) > int(record.start_s * (1 + TOLERANCE) / every_s)


def _versions() -> dict[str, str]:
    return {
        "lesson": lesson.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": importlib.metadata.version("torch"),
        "machine": platform.machine(),
    }
