"""Migrate the archived runs under results/ from the setting names of version 0.1; runs in today's format are kept.

    python tools/migrate_results.py [FOLDER …]

Runs with an injected fault that no longer exists cannot be migrated: they are dropped, and the command says how many.
"""

import json
import sys
from pathlib import Path
from typing import Any

from lesson.core.files import write_whole
from lesson.experiments.naming import series_name
from lesson.experiments.results import Result, from_jsonable, jsonable
from lesson.settings.migration import REMOVED, migrate
from lesson.settings.settings import Settings

ROOT = Path(__file__).resolve().parent.parent


def migrate_line(line: dict[str, Any]) -> dict[str, Any] | None:
    """Return a line of runs.jsonl in today's format; None if its run used a fault that no longer exists."""
    if "format" in line:
        return line
    tables = line.pop("settings")
    if any(tables.get(section, {}).get(name) for section, name in REMOVED):
        return None
    settings = Settings(**from_jsonable(migrate(tables)))
    own = {"series": series_name(settings), "settings": jsonable(settings.to_sections())}
    new = {"format": Result.FORMAT} | line | own
    return new | {"versions": new.pop("versions")}


def migrate_file(path: Path) -> None:
    """Migrate an archive of runs in place."""
    lines = [migrate_line(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    kept = [line for line in lines if line is not None]
    kept.sort(key=lambda line: (line["series"], line["seed"]))
    write_whole(path, "".join(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n" for line in kept).encode())
    print(f"{path}: {len(kept)} runs kept, {len(lines) - len(kept)} dropped")


if __name__ == "__main__":
    for folder in [Path(name) for name in sys.argv[1:]] or [ROOT / "results"]:
        for archive in sorted(folder.rglob("runs.jsonl")):
            migrate_file(archive)
