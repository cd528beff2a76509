"""The folder of a run: settings, a line per round, and what it takes to go on after a kill with the same bits.

A folder holds config.toml, metrics.jsonl, checkpoint.safetensors and the one before it while the run goes on, and
summary.json with model.safetensors and clients.json when it is done. Every file but metrics.jsonl is written aside and
renamed; metrics.jsonl grows by whole lines and is cut back to the checkpoint from which a run is resumed, the newest
that is whole.
"""

import contextlib
import errno
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy
from pydantic import TypeAdapter

from lesson.clock.simulate import Simulation
from lesson.core.arrays import with_prefix
from lesson.core.errors import InputError, RunStoppedError, describe
from lesson.core.files import open_input, open_to_change, remove_leftovers, write_whole
from lesson.core.locks import LOCK, locked
from lesson.core.toml import read_toml
from lesson.core.version import __version__
from lesson.learn.backend import cpu_capability, hardware, on_device
from lesson.learn.learner import Learner
from lesson.runs.checkpoints import Tensors, packed, unpacked
from lesson.runs.read_back import read_clients, read_json, read_summary
from lesson.runs.summary import TARGETS, clients_of
from lesson.settings.loading import FORMAT, load_settings
from lesson.settings.settings import AUTOMATIC, Settings
from lesson.settings.toml_text import to_toml

_REMEDY = "free some disk space or mend the folder, then --resume continues from the last checkpoint"
Kept = TypeVar("Kept")


NUMERIC = ("torch", "numpy", "cpu_capability")
"""Versions on which the bits of a run depend."""


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = path = Path(path)
        self.config, self.metrics = path / "config.toml", path / "metrics.jsonl"
        self.summary, self.model = path / "summary.json", path / "model.safetensors"
        self.clients = path / "clients.json"
        self.checkpoint, self.before = path / "checkpoint.safetensors", path / "checkpoint-before.safetensors"

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
        """The settings with device and precision named: as this folder's run began, or what this machine has."""
        if not self.config.exists():
            return on_device(settings)
        begun = load_settings(str(self.config)).run
        chosen = {name: getattr(begun, name) for name in AUTOMATIC if getattr(settings.run, name) == "auto"}
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
        """Make the folder this run's own, unless another process writes it."""
        self.make()
        with self.owned():
            self.check(settings, resume=True)  # somebody else may have begun another run since
            remove_leftovers(self.path)
            if self.config.exists():
                self._tell_other_versions(_versions(settings.run.device))
            else:
                tables = {"format": FORMAT} | settings.to_sections() | {"versions": _versions(settings.run.device)}
                write_whole(self.config, to_toml(tables).encode())

    def _tell_other_versions(self, here: dict[str, str]) -> None:
        """Say so if the run was begun with what computes otherwise."""
        begun = read_toml(self.config, "")[1].get("versions")
        begun = begun if isinstance(begun, dict) else {}
        other = [name for name in NUMERIC if str(begun.get(name, here[name])) != here[name]]
        if other:
            told = ", ".join(f"{name} {begun[name]} (here {here[name]})" for name in other)
            why = "results may differ from an undisturbed run by rounding"
            print(f"note: {self.path} was begun with {told}; {why}", file=sys.stderr)

    def finished(self) -> dict[str, Any] | None:
        """The summary of a run that has ended."""
        if not os.path.lexists(self.summary):
            return None
        self._forget_checkpoints()  # a kill may have come before this was done
        return read_summary(self.summary, tuple(f"{target:g}" for target in TARGETS))

    def read_clients(self) -> dict[str, Any]:
        """Who took part in a run that has ended, as `clients_of` tells it; empty where nobody wrote it down."""
        return read_clients(self.clients) if os.path.lexists(self.clients) else {}

    def owned(self) -> contextlib.AbstractContextManager[None]:
        """Nobody else writes this folder meanwhile."""
        return locked(self.path)

    @contextlib.contextmanager
    def withdrawn_if_rejected(self) -> Iterator[None]:
        """Leave nothing of a run that is rejected before its first round has ended; for who owns the folder."""
        try:
            yield
        except InputError:
            kept = self.checkpoint.exists() or self.before.exists()
            if not kept and not (self.metrics.exists() and self.metrics.stat().st_size):
                for file in (self.config, self.metrics, self.path / LOCK):
                    file.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # somebody else's files are in it
                    self.path.rmdir()
            raise

    def append(self, line: dict[str, Any]) -> None:
        """Add one line, whole, to the metrics."""
        content = (json.dumps(line, allow_nan=False) + "\n").encode()
        try:
            with open_to_change(self.metrics, append=True) as file:
                size = os.fstat(file.fileno()).st_size
                if os.write(file.fileno(), content) != len(content):
                    file.truncate(size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._stopped(self.metrics, error) from None

    def save(self, simulation: Simulation, learner: Learner) -> None:
        """Keep where the run stands, and where it stood at the checkpoint before."""
        values, arrays = simulation.state()
        try:
            with open_input(self.metrics) as file:
                os.fsync(file.fileno())
                values["metrics_bytes"] = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise self._stopped(self.metrics, error) from None
        tensors = {f"simulation.{name}": array for name, array in arrays.items()}
        content = packed(values, tensors | learner.state())
        with self._resumable():
            write_whole(self.checkpoint, content, before=self.before)

    def load(self, simulation: Simulation, learner: Learner) -> None:
        """Go on from the newest checkpoint that is whole, or from the beginning if there is none yet."""
        if self.summary.exists():
            raise InputError(f"{self.path} has just been ended by another process; the same command again shows it")
        size = 0
        if (kept := self._newest_whole()) is not None:
            path, values, tensors = kept
            size = values["metrics_bytes"]
            if not self.metrics.exists() or self.metrics.stat().st_size < size:
                raise InputError(f"{self.metrics} has lost lines since the checkpoint; remove the folder and run again")
            try:
                # The learner first: work in flight that a simulation gives up frees versions.
                learner.restore({name: one for name, one in tensors.items() if not name.startswith("simulation.")})
                simulation.restore(values, with_prefix(tensors, "simulation."))
            except InputError:
                raise
            except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                raise InputError(
                    f"{path} does not fit this run ({describe(error)}); remove the folder and run again"
                ) from None
        if os.path.lexists(self.metrics):
            try:
                with open_to_change(self.metrics) as file:
                    file.truncate(size)
            except OSError as error:
                raise InputError(f"{self.metrics} cannot be written: {error.strerror}") from None

    def _newest_whole(self) -> tuple[Path, dict[str, Any], Tensors] | None:
        """The newest checkpoint that is not damaged, and what it holds; says so if it is the one before."""
        wrong = []
        for path in filter(Path.exists, (self.checkpoint, self.before)):
            try:
                found = path, *unpacked(path)
            except ValueError as error:
                wrong.append(f"{path} cannot be used ({error})")
                continue
            if path == self.before:
                why = wrong[0] if wrong else f"{self.checkpoint} is not there"
                print(f"note: {why}; going on from the checkpoint before", file=sys.stderr)
                try:
                    self.before.replace(self.checkpoint)  # a damaged one must not replace it when the next is written
                except OSError as error:
                    raise InputError(f"{self.checkpoint} cannot be replaced: {error.strerror}; remove it") from None
            return found
        if wrong:
            raise InputError(f"{wrong[0]}; remove the folder and run again")
        return None

    def finish(self, simulation: Simulation, learner: Learner, summary: dict[str, Any]) -> None:
        """Keep the model, the clients and the summary; the checkpoints are not needed any more."""
        clients = clients_of(simulation, learner)
        with self._resumable():
            write_whole(self.model, safetensors.numpy.save(learner.parameters(simulation.version)))
            write_whole(self.clients, json.dumps(clients, allow_nan=False).encode() + b"\n")
            write_whole(self.summary, (json.dumps(summary, allow_nan=False, indent=2) + "\n").encode())
        self._forget_checkpoints()

    @contextlib.contextmanager
    def _resumable(self) -> Iterator[None]:
        """Stop the run if a file cannot be written: a resumed run repeats what is lost."""
        try:
            yield
        except (InputError, RunStoppedError) as error:
            what, _, _ = str(error).partition(";")
            raise RunStoppedError(f"{what}; {_REMEDY}") from None

    def _stopped(self, path: Path, error: OSError) -> RunStoppedError:
        return RunStoppedError(f"{path} cannot be written: {error.strerror}; {_REMEDY}")

    def _forget_checkpoints(self) -> None:
        for path in filter(Path.exists, (self.before, self.checkpoint)):
            with contextlib.suppress(OSError):  # whoever only reads a folder may not be allowed to
                path.unlink()


def read_kept(path: Path, usual: Kept, kind: TypeAdapter[Any], remedy: str) -> Kept:
    """What a JSON file holds, which must be of a kind; `usual`, where there is no file."""
    kept: Kept = read_json(path, kind, remedy) if os.path.lexists(path) else usual
    return kept


def _versions(device: str) -> dict[str, str]:
    return {
        "lesson": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": importlib.metadata.version("torch"),
        "machine": platform.machine(),
        "hardware": hardware(device),
        "cpu_capability": cpu_capability(),
    }
