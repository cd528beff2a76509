"""The folder of a run: its settings, a line of metrics per round, and checkpoints for a bit-identical resume.

While a run is in progress, its folder holds config.toml, metrics.jsonl, checkpoint.safetensors and the previous
checkpoint; afterwards summary.json, model.safetensors and clients.json instead of the checkpoints. Every file except
metrics.jsonl is written under a temporary name and renamed. metrics.jsonl grows by complete lines; a resume truncates
it to the newest checkpoint that is not damaged.
"""

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import tomli_w
from pydantic import TypeAdapter

from lesson.core.arrays import with_prefix
from lesson.core.errors import InputError, RunStoppedError, UnfitFleetError, describe
from lesson.core.files import remove_leftovers, write_whole
from lesson.core.locks import locked
from lesson.core.toml import read_toml
from lesson.core.version import __version__
from lesson.learn.device import cpu_capability, hardware
from lesson.learn.pipeline import Pipeline
from lesson.runs.checkpoints import Tensors, packed, unpacked
from lesson.runs.inputs import check_imported, input_digests
from lesson.runs.read_back import ClientsFile, Summary, read_json
from lesson.settings.loading import FOR_READERS, FORMAT, load_settings
from lesson.settings.sections import RunSettings
from lesson.settings.settings import Settings

_REMEDY = "free some disk space or repair the folder, then resume the run from its last checkpoint"
_SUMMARY, _CLIENTS = TypeAdapter(Summary), TypeAdapter(ClientsFile)
_to_json = json.JSONEncoder(allow_nan=False).encode
NUMERIC = ("torch", "numpy", "cpu_capability")
"""Versions on which the exact results of a run depend."""
LIMITS = ("run.rounds", "run.time_budget_s")


@dataclass(frozen=True)
class Begun:
    """The run that a folder holds, according to its config.toml."""

    settings: Settings
    is_shorter: bool
    """Whether it has fewer rounds or a smaller time budget than the settings for which the folder was checked."""


class RunFolder:
    """The files of one run."""

    def __init__(
        self, path: Path | str, resume: str = "resume it", another: str = "choose another output folder"
    ) -> None:
        """`resume` and `another` say in errors how the user resumes a run and chooses another folder."""
        self.path, self._resume, self._another = (path := Path(path)), resume, another
        self.config, self.metrics = path / "config.toml", path / "metrics.jsonl"
        self.summary, self.model = path / "summary.json", path / "model.safetensors"
        self.clients, self.recording = path / "clients.json", path / "flight.jsonl"
        self.checkpoint, self.before = path / "checkpoint.safetensors", path / "checkpoint-before.safetensors"

    def check(
        self, settings: Settings, resume: bool, may_extend: bool = False, may_change: Collection[str] = ()
    ) -> Begun | None:
        """Return the run in the folder, if any; raise InputError if it is another run, or needs `resume`.

        With `may_extend`, these settings may have more rounds or a larger time budget than the folder's run, and those
        in `may_change` may be others.
        """
        if (found := self.begun) is None:
            if self.path.exists() and not self.path.is_dir():
                raise InputError(f"{self.path} is a file, not a folder; {self._another}")
            if self.path.exists() and any(self.path.glob("[!.]*")):
                raise InputError(f"{self.path} is not empty and holds no run; {self._another}")
            return None
        has_summary = self.summary.exists()
        longer = may_extend and _is_longer(settings.run, found.run)
        if different := settings.differences(found, ignored=(*may_change, *(LIMITS if longer else ()))):
            raise InputError(
                f"{self.path} holds a run with other settings ({different[0]}); undo the change, or {self._another}"
            )
        if (has_summary or self.is_resumable) and (changed := self.changed_input(settings)):
            raise InputError(
                f"{self.path} holds a run with another version of {changed}; {self._another}, remove this one or, to "
                "resume it nevertheless, the table [inputs] in its config.toml"
            )
        if not resume and (longer or not has_summary):
            what = f"a run of {_length(found.run)}" if longer else "an unfinished run"
            raise InputError(f"{self.path} holds {what}; {self._resume}, or {self._another}")
        if longer and has_summary and not self.is_resumable:
            raise InputError(f"{self.path} holds a finished run without a checkpoint to continue from; {self._another}")
        return Begun(found, longer)

    def changed_input(self, settings: Settings) -> str:
        """Return the first input or source file that has changed since the folder's run started; empty if none has.

        A run without the table [inputs], which the user may remove, counts as unchanged, and so does a missing folder.
        """
        if not self.config.exists():
            return ""
        now = input_digests(settings)
        then = self._tables().get("inputs", {}) if now else {}
        return next((name for name in now | then if then and now.get(name) != then.get(name)), "")

    @property
    def is_resumable(self) -> bool:
        """Whether there is a checkpoint."""
        return self.checkpoint.exists() or self.before.exists()

    @property
    def begun(self) -> Settings | None:
        """Settings of the folder's run; None if there is none."""
        return load_settings(str(self.config)) if self.config.exists() else None

    @property
    def is_unfinished(self) -> bool:
        """Whether the folder holds a run that has started but not finished."""
        return self.config.exists() and not self.summary.exists()

    def make(self) -> None:
        """Create the folder if it does not exist."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path} cannot be created: {error.strerror}; {self._another}") from None

    def begin(
        self,
        settings: Settings,
        options: Mapping[str, Any],
        may_extend: bool = False,
        may_change: Collection[str] = (),
    ) -> None:
        """Create the folder of this run or check an existing one; raise InputError if another process is writing it.

        `options` are all options of the strategy: config.toml lists those that are unset in a table of their own. With
        `may_extend` and `may_change`, an existing run gets the limits and these values of the settings.
        """
        check_imported(settings)
        self.make()
        unset = {name: value for name, value in options.items() if name not in settings.strategy.options}
        here = {
            "strategy_defaults": {name: "unset" if value is None else value for name, value in unset.items()},
            "versions": _versions(settings.run.device),
            "inputs": input_digests(settings),
        }
        with self.owned():
            # Another process may have started a run here since the first check.
            begun = self.check(settings, True, may_extend, may_change)
            remove_leftovers(self.path)
            if begun is not None and self.is_resumable:
                self._note_other_versions(here["versions"])
            if begun is not None and begun.is_shorter:
                # Without a summary, the run counts as unfinished, whatever happens before its limits are written.
                self.summary.unlink(missing_ok=True)
                self._write_config(settings, self._tables())
            elif begun is not None and not self.summary.exists() and settings.differences(begun.settings):
                self._write_config(settings, self._tables())
            elif not self.is_resumable and not self.summary.exists():
                self._write_config(settings, here)

    def _write_config(self, settings: Settings, tables: Mapping[str, dict[str, Any]]) -> None:
        known = {name: table for name, table in tables.items() if table}
        write_whole(self.config, tomli_w.dumps({"format": FORMAT} | settings.to_sections() | known).encode())

    def _tables(self) -> dict[str, dict[str, Any]]:
        """Return how the run was started, according to config.toml: `strategy_defaults`, `versions` and `inputs`."""
        tables = read_toml(self.config, "")
        return {name: tables[name] for name in FOR_READERS if name in tables}

    def _note_other_versions(self, here: dict[str, str]) -> None:
        """Print a note if the run was started with versions that may compute differently."""
        begun = self._tables().get("versions", {})
        other = [name for name in NUMERIC if begun.get(name, here[name]) != here[name]]
        if other:
            versions = ", ".join(f"{name} {begun[name]} (here {here[name]})" for name in other)
            why = "results may differ from those of an uninterrupted run in rounding"
            print(f"note: {self.path} was started with {versions}; {why}", file=sys.stderr)

    def finished(self) -> dict[str, Any] | None:
        """Return the summary of a finished run; None if the run has not finished. Deletes nothing."""
        remedy = "remove it to resume from the checkpoint" if self.is_resumable else "remove the folder and rerun"
        summary: dict[str, Any] | None = read_json(self.summary, _SUMMARY, remedy, None)
        return summary

    def read_clients(self) -> dict[str, Any]:
        """Return the clients of a finished run as `clients_of` describes them; empty if there is no such file."""
        clients: dict[str, Any] = read_json(self.clients, _CLIENTS, "remove it or restore a copy", {})
        return clients

    def owned(self) -> contextlib.AbstractContextManager[None]:
        """Lock the folder within the context; afterwards, an empty folder is removed."""
        return locked(self.path)

    @contextlib.contextmanager
    def withdrawn_if_rejected(self) -> Iterator[None]:
        """Remove the run's files if its input is rejected before the first round ends; the folder must be locked."""
        try:
            yield
        except (InputError, UnfitFleetError):
            if not self.is_resumable and not (self.metrics.exists() and self.metrics.stat().st_size):
                for file in (self.config, self.metrics, self.recording):
                    file.unlink(missing_ok=True)
            raise

    def append(self, lines: Sequence[dict[str, Any]]) -> None:
        """Append complete lines to the metrics."""
        if not lines:
            return
        content = "".join(f"{_to_json(line)}\n" for line in lines).encode()
        with self._resumable():
            size = self.metrics.stat().st_size if self.metrics.exists() else 0
            try:
                with self.metrics.open("ab") as file:
                    file.write(content)
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(self.metrics, size)
                raise

    def save(self, pipeline: Pipeline) -> None:
        """Write a checkpoint of a pipeline that has been drained, and keep the previous one."""
        values, arrays = pipeline.loop.state()
        tensors = {f"loop.{name}": array for name, array in arrays.items()} | pipeline.lane.state()
        with self._resumable():
            with self.metrics.open("rb") as file:
                os.fsync(file.fileno())
            content = packed(values | {"metrics_bytes": self.metrics.stat().st_size}, tensors)
            write_whole(self.checkpoint, content, before=self.before)

    def load(self, pipeline: Pipeline) -> None:
        """Resume from the newest undamaged checkpoint, or start from the beginning if there is none."""
        if self.summary.exists():
            raise InputError(f"{self.path} has just been finished by another process; try again to read its results")
        size = 0
        if (found := self._newest_undamaged()) is not None:
            path, values, tensors = found
            size = values["metrics_bytes"]
            if not self.metrics.exists() or self.metrics.stat().st_size < size:
                raise InputError(f"{self.metrics} lacks lines that the checkpoint counts; remove the folder and rerun")
            try:
                pipeline.lane.restore({name: one for name, one in tensors.items() if not name.startswith("loop.")})
                pipeline.loop.restore(values, with_prefix(tensors, "loop."))
            except InputError:
                raise
            except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                raise InputError(
                    f"{path} does not match this run ({describe(error)}); remove the folder and rerun"
                ) from error
        if self.metrics.exists():
            os.truncate(self.metrics, size)

    def _newest_undamaged(self) -> tuple[Path, dict[str, Any], Tensors] | None:
        """Return path, values and arrays of the newest undamaged checkpoint; print a note if it is the previous one."""
        wrong = []
        for path in filter(Path.exists, (self.checkpoint, self.before)):
            try:
                found = path, *unpacked(path)
            except ValueError as error:
                wrong.append(f"{path} cannot be used ({error})")
                continue
            if path == self.before:
                why = wrong[0] if wrong else f"{self.checkpoint} does not exist"
                print(f"note: {why}; resuming from the previous checkpoint", file=sys.stderr)
                self.before.replace(self.checkpoint)  # otherwise the next save would replace it by the damaged one
            return found
        if wrong:
            raise InputError(f"{wrong[0]}; remove the folder and rerun")
        return None

    def finish(
        self,
        pipeline: Pipeline,
        parameters: Tensors,
        clients: dict[str, Any],
        summary: dict[str, Any],
        *,
        keep_checkpoint: bool = False,
    ) -> None:
        """Write model, clients and summary, and remove the checkpoints.

        With `keep_checkpoint`, the last checkpoint is kept, so that the run can be continued with more rounds. It is
        that of the last round, unless the run ended within a round.
        """
        if keep_checkpoint and not pipeline.loop.stop_reason and self.metrics.exists():
            self.save(pipeline)
        with self._resumable():
            write_whole(self.model, safetensors.numpy.save(parameters))
            write_whole(self.clients, json.dumps(clients, allow_nan=False).encode() + b"\n")
            write_whole(self.summary, (json.dumps(summary, allow_nan=False, indent=2) + "\n").encode())
        if not keep_checkpoint:
            self.delete_checkpoints()

    def delete_checkpoints(self) -> None:
        """Delete the checkpoints of a run that has ended; a folder that is not writable keeps them."""
        with contextlib.suppress(OSError):
            self.before.unlink(missing_ok=True)
            self.checkpoint.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _resumable(self) -> Iterator[None]:
        """Convert an error in writing a file to RunStoppedError; the run can be resumed from its last checkpoint."""
        try:
            yield
        except OSError as error:
            raise RunStoppedError(f"{self.metrics} cannot be written: {error.strerror}; {_REMEDY}") from None
        except (InputError, RunStoppedError) as error:
            what, _, _ = str(error).partition(";")
            raise RunStoppedError(f"{what}; {_REMEDY}") from None


def _is_longer(limits: RunSettings, before: RunSettings) -> bool:
    """Return whether a run with these limits is longer than before: in one of them, and shorter in none."""

    def of(limits: RunSettings) -> tuple[float, float]:
        return (math.inf if limits.rounds is None else limits.rounds), limits.time_budget_s

    return of(limits) != of(before) and all(now >= then for now, then in zip(of(limits), of(before), strict=True))


def _length(limits: RunSettings) -> str:
    return f"{limits.rounds} rounds" if limits.rounds is not None else f"{limits.time_budget_s:g} s"


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
