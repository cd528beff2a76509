"""Migrate the folders of contests and reproductions that version 0.2 wrote to study.toml and runs.jsonl.gz.

    python tools/migrate_results.py FOLDER …

Runs, settings and provenance are kept; the migrated files (runs.jsonl, provenance.json, rules.json, scale.json and
entries.toml) are removed.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

from lesson.core.files import write_whole
from lesson.experiments.archive import ARCHIVE, write_archive
from lesson.experiments.folder import FORMAT, MARKER
from lesson.experiments.naming import run_name
from lesson.experiments.run import Archived, Run, summary_of
from lesson.settings.settings import Settings

OLD = ("runs.jsonl", "provenance.json", "rules.json", "scale.json", "entries.toml")


def migrate_run(line: dict[str, Any]) -> Run:
    """Return the run of a line of runs.jsonl."""
    tables = {
        section: {name: math.inf if one == "inf" else one for name, one in table.items()}
        for section, table in line["settings"].items()
        if isinstance(table, dict)
    }
    settings = Settings(preset=line["settings"]["preset"], **tables)
    curve = pd.DataFrame(line["curve"])
    archived = Archived(run_name(settings), line["versions"], curve, pd.DataFrame(line["clients"]))
    return Run(None, settings, summary_of(settings, curve, line["stopped"]), line["stopped"], archived=archived)


def migrate_folder(folder: Path) -> None:
    """Migrate one folder in place."""
    text = (folder / "runs.jsonl").read_text(encoding="utf-8")
    runs = [migrate_run(json.loads(line)) for line in text.splitlines()]
    notes = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    provenance = [{name: one or "" for name, one in note.items()} for note in notes]
    if (folder / "scale.json").exists():
        kind = "reproduction"
        asked = tomli_w.dumps({"reproduction": json.loads((folder / "scale.json").read_text(encoding="utf-8"))})
    else:
        kind, asked = "tuned comparison", (folder / "entries.toml").read_text(encoding="utf-8")
    study = {"format": FORMAT, "kind": kind, "versions": {}, "provenance": provenance, "failures": {}}
    write_archive(folder / ARCHIVE, runs)
    write_whole(folder / MARKER, f"{asked.rstrip()}\n\n{tomli_w.dumps({'study': study})}".encode())
    for path in (folder / "runs").glob("*"):
        path.rename(folder / path.name)
    for name in OLD:
        (folder / name).unlink(missing_ok=True)
    print(f"{folder}: {len(runs)} runs")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        migrate_folder(Path(name))
