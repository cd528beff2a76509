"""Logs runs to TensorBoard, over rounds and over simulated time."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from lesson.core.errors import InputError
from lesson.core.files import open_to_change
from lesson.runs.trackers.base import Line, flat_settings, numbers
from lesson.settings.settings import Settings
from lesson.settings.toml_text import to_toml

FOLDER = "tensorboard"
SHOWN = ("accuracy", "loss", "uploads", "bytes_up", "bytes_down", "energy_j", "staleness")


class TensorBoard:
    """Writes settings and metrics to RUN/tensorboard, each metric once over rounds and once over simulated seconds.

    A resumed run is written anew from its kept lines: TensorBoard can discard events after a given step, but here steps
    are rounds for one half of the tags and seconds for the other.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            remedy = "pip install 'lesson-fl[tensorboard]' does it, '.[tensorboard]' in a clone"
            raise InputError(f"TensorBoard is not installed; {remedy}")

    def begin(self, settings: Settings, folder: Path, kept: Sequence[Line]) -> None:
        from lesson.runs.trackers.event_file import PREFIX, EventFile

        if (folder / FOLDER).is_symlink():
            raise InputError(f"{folder / FOLDER} is a symbolic link; remove it")
        (folder / FOLDER).mkdir(exist_ok=True)
        for before in (folder / FOLDER).glob(f"{PREFIX}*"):
            with open_to_change(before) as file:
                file.truncate(0)  # not removed: a viewer that has it open continues with the next file
        self._file = EventFile(folder / FOLDER)
        self._file.settings(flat_settings(settings))
        self._file.text("settings", f"```toml\n{to_toml(settings.to_sections())}```")
        for line in kept:
            self.line(line)
        self._file.flush()

    def line(self, line: Line) -> None:
        values = {name: value for name, value in numbers(line).items() if name in SHOWN}
        for axis, step in (("round", line["round"]), ("simulated time", round(line["time_s"]))):
            self._file.scalars(step, {f"{name}/by {axis}": value for name, value in values.items()})
        if "accuracy" in line:
            self._file.flush()

    def end(self, summary: Line | None) -> None:
        if summary is not None:
            self._file.success()
        self._file.close()
