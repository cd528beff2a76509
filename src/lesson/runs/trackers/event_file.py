"""Writes TensorBoard event files with the package tensorboard, without TensorFlow."""

import json
import math
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text import metadata as texts
from tensorboard.summary.writer.record_writer import RecordWriter

FLUSH_S = 2.0
PREFIX = "events.out.tfevents."


class EventFile:
    """The events of one run, flushed to disk with an event if FLUSH_S seconds have passed, or by `flush`."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{PREFIX}{time.time_ns()}.{socket.gethostname()}"
        self._records = RecordWriter(path.open("xb"))
        self._flushed = time.monotonic()
        self._write(file_version="brain.Event:2")
        self._write(session_log=SessionLog(status=SessionLog.START))  # tells a running viewer to discard earlier events

    def settings(self, values: Mapping[str, Any]) -> None:
        """Write the settings of the run, for TensorBoard's table of hyperparameters."""
        info = SessionStartInfo(start_time_secs=time.time())
        for name, value in values.items():
            if isinstance(value, bool):
                info.hparams[name].bool_value = value
            elif isinstance(value, int | float) and math.isfinite(value):
                info.hparams[name].number_value = value
            else:
                info.hparams[name].string_value = value if isinstance(value, str) else json.dumps(value)
        self._write_session(hparams.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=info))

    def text(self, tag: str, markdown: str) -> None:
        """Write a text in Markdown."""
        tensor = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()])
        about = texts.create_summary_metadata(display_name=tag, description="")
        self._write(summary=Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=about)]))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalar values by tag, for one step."""
        told = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(step=step, summary=Summary(value=told))

    def success(self) -> None:
        """Mark the run as completed."""
        info = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
        self._write_session(hparams.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=info))

    def flush(self) -> None:
        """Make everything written so far visible to readers."""
        self._records.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        self._records.close()

    def _write_session(self, tag: str, data: Any) -> None:
        about = hparams.create_summary_metadata(data)
        self._write(summary=Summary(value=[Summary.Value(tag=tag, tensor=hparams.NULL_TENSOR, metadata=about)]))

    def _write(self, **event: Any) -> None:
        self._records.write(Event(wall_time=time.time(), **event).SerializeToString())
        if time.monotonic() - self._flushed >= FLUSH_S:
            self.flush()
