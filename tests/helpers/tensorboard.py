"""The scalars that TensorBoard reads from a run's folder, and those it should read."""

import importlib.util
from pathlib import Path

import pytest

from lesson.runs.summary import read_metrics
from lesson.runs.tensorboard import SHOWN

needs_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="not installed")


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values by tag, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), {"scalars": 0, "tensors": 0}).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def expected_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values by tag from metrics.jsonl; TensorBoard stores values as float32."""
    tags: dict[str, list[tuple[int, float]]] = {}
    for line in read_metrics(folder / "metrics.jsonl"):
        for name in SHOWN:
            if line.get(name) is not None:
                value = pytest.approx(line[name], rel=1e-6)
                tags.setdefault(f"{name}/by round", []).append((line["round"], value))
                tags.setdefault(f"{name}/by simulated time", []).append((round(line["time_s"]), value))
    return tags
