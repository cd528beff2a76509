"""The folder of a run: settings, a line per round, and what it takes to go on after a kill with the same bits.

A folder holds config.toml, metrics.jsonl, checkpoint.safetensors while the run goes on, and summary.json with
model.safetensors and clients.json when it is done. Every file but metrics.jsonl is written aside and renamed;
metrics.jsonl grows by whole lines and is cut back to the last checkpoint when a run is resumed.
"""

import contextlib
import errno
import fcntl
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors
import safetensors.numpy

import lesson
from lesson.arrays import with_prefix
from lesson.errors import InputError, RunStoppedError
from lesson.learn.backend import hardware, on_device
from lesson.learn.learner import Learner
from lesson.run_clients import clients_of
from lesson.settings import Settings, load_settings, to_toml
from lesson.simulate import Simulation

Kept = TypeVar("Kept")


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics = path / "config.toml", path / "metrics.jsonl"
        self.summary, self.model = path / "summary.json", path / "model.safetensors"
        self.clients = path / "clients.json"
        self.checkpoint = path / "checkpoint.safetensors"

    def check(self, settings: Settings, resume: bool) -> None:
        """Raise if the folder belongs to something else, or to a run that is to be resumed. Writes nothing."""
        if self.config.exists():
            if different := settings.differences(load_settings(str(self.config))):
                raise InputError(
                    f"{self.path} belongs to a run with other settings ({different[0]}); name another folder with --out"
                )
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

    def make(self) -> None:
        """See to it that the folder is there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path} cannot be made: {error.strerror}; name another folder with --out") from None

    def begin(self, settings: Settings) -> None:
        """Make the folder this run's own."""
        self.make()
        for left in self.path.glob(".*.aside"):  # by a process that was killed while writing
            left.unlink()
        if not self.config.exists():
            sections = settings.to_sections() | {"versions": _versions(settings.run.device)}
            write_whole(self.config, to_toml(sections).encode())

    def finished(self) -> dict[str, Any] | None:
        """The summary of a run that has ended."""
        if not self.summary.exists():
            return None
        self.checkpoint.unlink(missing_ok=True)  # a kill may have come before this was done
        try:
            summary: dict[str, Any] = json.loads(self.summary.read_text(encoding="utf-8"))
            if not (isinstance(summary, dict) and {"strategy", "seed", "time_to_s"} <= summary.keys()):
                raise ValueError("no summary")
        except ValueError:
            raise InputError(f"{self.summary} is damaged; remove the folder and run again") from None
        return summary

    def read_clients(self) -> dict[str, Any]:
        """Who took part in a run that has ended, as `clients_of` tells it; empty where nobody wrote it down."""
        kept = read_kept(self.clients, dict[str, Any](), "run it again")
        if kept and not {"clients", "promoted", "num_clients", "class_accuracy"} <= kept.keys():
            raise InputError(f"{self.clients} is damaged (it does not tell of clients); remove it, or put back a copy")
        return kept

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

    @contextlib.contextmanager
    def withdrawn_if_refused(self) -> Iterator[None]:
        """Leave nothing of a run that is refused before its first round has ended; for who owns the folder."""
        try:
            yield
        except InputError:
            if not self.checkpoint.exists() and not (self.metrics.exists() and self.metrics.stat().st_size):
                for file in (self.config, self.metrics, self.path / ".lock"):
                    file.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # somebody else's files are in it
                    self.path.rmdir()
            raise

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
        tensors |= learner.state()
        write_whole(self.checkpoint, safetensors.numpy.save(tensors, {"state": json.dumps(values, allow_nan=False)}))

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
            # The learner first: work in flight that a simulation gives up frees versions.
            learner.restore({name: one for name, one in tensors.items() if not name.startswith("simulation.")})
            simulation.restore(values, with_prefix(tensors, "simulation."))
        if self.metrics.exists():
            os.truncate(self.metrics, size)

    def finish(self, simulation: Simulation, learner: Learner, summary: dict[str, Any]) -> None:
        """Keep the model, the clients and the summary; the checkpoint is not needed any more."""
        write_whole(self.model, safetensors.numpy.save(learner.parameters(simulation.version)))
        write_whole(self.clients, json.dumps(clients_of(simulation, learner), allow_nan=False).encode() + b"\n")
        write_whole(self.summary, (json.dumps(summary, allow_nan=False, indent=2) + "\n").encode())
        self.checkpoint.unlink(missing_ok=True)


def read_kept(path: Path, usual: Kept, remedy: str) -> Kept:
    """What a JSON file holds, which must be of the kind of `usual`; that itself, where there is no file."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else usual
        if not isinstance(kept, type(usual)):
            raise ValueError(f"it holds no {type(usual).__name__}")
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}); put back a copy or {remedy}") from None
    return kept


def write_whole(path: Path, content: bytes) -> None:
    """Put a file into place; it appears whole or not at all."""
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


def _versions(device: str) -> dict[str, str]:
    return {
        "lesson": lesson.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": importlib.metadata.version("torch"),
        "machine": platform.machine(),
        "hardware": hardware(device),
    }
