"""Compare an interrupted and resumed run with an uninterrupted one."""

from pathlib import Path
from typing import Any

import pytest

from lesson.runs.execute import execute
from lesson.settings.settings import Settings

SAME = ("metrics.jsonl", "model.safetensors", "clients.json")


class StoppedError(Exception):
    """Raised to interrupt a run."""


def check_resumes(settings: Settings, folder: Path, after_round: int, **parts: Any) -> None:
    """Fail unless a run that is interrupted after a round and resumed is bit-identical to an uninterrupted one."""

    def break_off(line: dict[str, Any]) -> None:
        if line["round"] == after_round:
            raise StoppedError

    execute(settings, folder / "whole", **parts)
    with pytest.raises(StoppedError):
        execute(settings, folder / "broken", progress=break_off, **parts)
    execute(settings, folder / "broken", resume=True, **parts)
    for name in SAME:
        assert (folder / "broken" / name).read_bytes() == (folder / "whole" / name).read_bytes()
