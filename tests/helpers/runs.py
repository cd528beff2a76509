"""Settings of short runs on a tiny task, and the results that two equal runs must share."""

import json
from pathlib import Path
from typing import Any

from helpers.small_tasks import tiny_task
from lesson.settings.settings import Settings

PARTS: dict[str, Any] = {"task": tiny_task(), "num_threads": 1}


def settings(strategy: str = "lesson", **run: Any) -> Settings:
    return Settings(
        fleet={"num_clients": 6},
        training={"batch_size": 5},
        data={"split": "iid"},
        strategy={"name": strategy},
        run={"eval_every_s": 100.0, "rounds": 30, "device": "cpu"} | run,
    )


def content(path: Path) -> dict[str, bytes]:
    """Return all results that must be the same for the same seed, that is without the wall-clock fields."""
    summary = json.loads((path / "summary.json").read_text())
    kept = {name: value for name, value in summary.items() if not name.startswith("wall_")}
    names = ("metrics.jsonl", "model.safetensors", "clients.json")
    return {name: (path / name).read_bytes() for name in names} | {"summary": json.dumps(kept).encode()}
