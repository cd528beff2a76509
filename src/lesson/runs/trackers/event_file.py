"""A file of events as TensorBoard reads it. It takes the package tensorboard, and not TensorFlow."""

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
    """Events of one run; what is written reaches the disk within seconds, or with `flush`."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{PREFIX}{time.time_ns()}.{socket.gethostname()}"
        self._records = RecordWriter(path.open("xb"))
        self._flushed = time.monotonic()
        self._write(file_version="brain.Event:2")
        self._write(session_log=SessionLog(status=SessionLog.START))  # who reads on forgets what was there before

    def settings(self, values: Mapping[str, Any]) -> None:
        """The settings of the run, for TensorBoard's table of hyperparameters."""
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
        """A text to be shown."""
        tensor = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()])
        about = texts.create_summary_metadata(display_name=tag, description="")
        self._write(summary=Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=about)]))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Values by their tags, at one step."""
        told = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(step=step, summary=Summary(value=told))

    def success(self) -> None:
        """The run has ended well."""
        info = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
        self._write_session(hparams.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=info))

    def flush(self) -> None:
        """Let readers see what was written."""
        self._records.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Nothing more is written."""
        self._records.close()

    def _write_session(self, tag: str, data: Any) -> None:
        about = hparams.create_summary_metadata(data)
        self._write(summary=Summary(value=[Summary.Value(tag=tag, tensor=hparams.NULL_TENSOR, metadata=about)]))

    def _write(self, **event: Any) -> None:
        self._records.write(Event(wall_time=time.time(), **event).SerializeToString())
        if time.monotonic() - self._flushed >= FLUSH_S:
            self.flush()
