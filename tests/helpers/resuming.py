"""A run that is broken off and goes on, against one that nobody disturbed."""

from pathlib import Path
from typing import Any

import pytest

from lesson.runs.execute import execute
from lesson.settings.settings import Settings

SAME = ("metrics.jsonl", "model.safetensors", "clients.json")


class StoppedError(Exception):
    """Breaks a run off."""


def check_goes_on(settings: Settings, folder: Path, after_round: int, **parts: Any) -> None:
    """Fail unless a run that is broken off after a round and resumed ends with the bytes of a whole one."""

    def break_off(line: dict[str, Any]) -> None:
        if line["round"] == after_round:
            raise StoppedError

    execute(settings, folder / "whole", **parts)
    with pytest.raises(StoppedError):
        execute(settings, folder / "broken", progress=break_off, **parts)
    execute(settings, folder / "broken", resume=True, **parts)
    for name in SAME:
        assert (folder / "broken" / name).read_bytes() == (folder / "whole" / name).read_bytes()
