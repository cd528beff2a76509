"""Logs runs to TensorBoard, over rounds and over simulated time."""

import importlib.util
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import tomli_w

from lesson.core.errors import InputError
from lesson.learn.metric import RESERVED
from lesson.runs.trackers import Line, flat_settings, numbers
from lesson.settings.settings import Settings

FOLDER = "tensorboard"
EVENTS = "events.out.tfevents."
"""How the names of event files begin; the time in seconds follows."""
FLUSH_S = 2
SHOWN = ("accuracy", "loss", "uploads", "bytes_up", "bytes_down", "energy_j", "staleness")
"""Fields of every line that are shown; the task's own metrics are shown, too."""


class TensorBoard:
    """Writes settings and metrics to RUN/tensorboard, each metric once over rounds and once over simulated seconds.

    The events of a resumed run are rewritten from its earlier lines. TensorBoard can discard events after a given step,
    but here steps are rounds for one half of the tags and seconds for the other.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            remedy = "run pip install 'lesson-fl[tensorboard]', or '.[tensorboard]' in a clone"
            raise InputError(f"TensorBoard is not installed; {remedy}")

    def begin(self, settings: Settings, folder: Path, earlier: Sequence[Line]) -> None:
        from torch.utils.tensorboard import FileWriter, SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        (folder / FOLDER).mkdir(exist_ok=True)
        before = sorted((folder / FOLDER).glob(f"{EVENTS}*"))
        for path in before:
            os.truncate(path, 0)  # not removed: a viewer that has it open continues with the next file
        if before and before[-1].name >= f"{EVENTS}{int(time.time())}":
            time.sleep(1)  # otherwise, the next file may not come last by name
        self._writer = SummaryWriter(str(folder / FOLDER), purge_step=0, max_queue=1000, flush_secs=FLUSH_S)
        # add_hparams would write to a subfolder, and the summary left out here would hide the metrics from the table.
        _, start, self._success = hparams({name: _shown(value) for name, value in flat_settings(settings).items()}, {})
        self._file = cast("FileWriter", self._writer.file_writer)
        self._file.add_summary(start)
        self._writer.add_text("settings", f"```toml\n{tomli_w.dumps(settings.to_sections())}```")
        for line in earlier:
            self.line(line)
        self._writer.flush()

    def line(self, line: Line) -> None:
        values = {name: value for name, value in numbers(line).items() if name in SHOWN or name not in RESERVED}
        for axis, step in (("round", line["round"]), ("simulated time", round(line["time_s"]))):
            for name, value in values.items():
                self._writer.add_scalar(f"{name}/by {axis}", value, step)
        if "loss" in line:
            self._writer.flush()

    def end(self, summary: Line | None) -> None:
        if summary is not None:
            self._file.add_summary(self._success)
        self._writer.close()


def _shown(value: Any) -> float | str:
    """Return a setting as TensorBoard shows it: a finite number or a string."""
    finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if finite or isinstance(value, str) else json.dumps(value)
