"""Compare an interrupted and resumed run with an uninterrupted one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lesson.runs.execute import execute
from lesson.settings.settings import Settings

SAME = ("metrics.jsonl", "model.safetensors", "clients.json")


class StoppedError(Exception):
    """Raised to interrupt a run."""


def stop_after(round: int) -> Callable[[dict[str, Any]], None]:
    """Return a progress callback that interrupts a run after a round."""

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == round:
            raise StoppedError

    return stop


def check_resumes(settings: Settings, folder: Path, after_round: int, **parts: Any) -> None:
    """Fail unless a run that is interrupted after a round and resumed is bit-identical to an uninterrupted one."""
    execute(settings, folder / "whole", **parts)
    with pytest.raises(StoppedError):
        execute(settings, folder / "broken", progress=stop_after(after_round), **parts)
    execute(settings, folder / "broken", resume=True, **parts)
    for name in SAME:
        assert (folder / "broken" / name).read_bytes() == (folder / "whole" / name).read_bytes()
