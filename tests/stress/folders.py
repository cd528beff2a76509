"""The content of output folders that must be the same, no matter how their runs were disturbed."""

import json
from pathlib import Path

from lesson.experiments.folder import MARKER, StudyFolder
from lesson.runs.checkpoints import unpacked
from lesson.settings.loading import load_settings

SAME = ("metrics.jsonl", "model.safetensors", "clients.json", "config.toml")
TABLES = ("table.json", "table.csv")


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files under a folder by name, without wall-clock times.

    Only results have their bytes; all other files and folders are listed with empty content.
    """
    found = {str(path.relative_to(folder)): b"" for path in folder.rglob("*")}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name in (*SAME, *TABLES):
            found[name] = path.read_bytes()
        if path.name == "summary.json":
            summary = json.loads(path.read_text())
            found[name] = json.dumps({key: one for key, one in summary.items() if not key.startswith("wall_")}).encode()
    return found


def check_same(folder: Path, undisturbed: Path) -> None:
    """Raise if two folders differ in anything but wall-clock times."""
    ours, theirs = content(folder), content(undisturbed)
    assert ours.keys() == theirs.keys(), f"files differ: {sorted(ours.keys() ^ theirs.keys())}"
    different = [name for name in ours if ours[name] != theirs[name]]
    assert not different, f"{', '.join(different)} must be those of the undisturbed run"


def check_whole(folder: Path) -> None:
    """Raise if a run that was stopped left an incomplete or temporary file."""
    for path in folder.rglob("*"):
        if path.name == "metrics.jsonl":
            lines = path.read_text().splitlines(keepends=True)
            assert all(line.endswith("\n") for line in lines), f"{path} ends within a line"
            assert [json.loads(line)["round"] for line in lines] == list(range(1, len(lines) + 1)), f"{path} has gaps"
        elif path.name == "config.toml":
            load_settings(str(path))
        elif path.name == MARKER:
            StudyFolder(path.parent).read()
        elif path.name.startswith("checkpoint"):
            unpacked(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        assert not path.name.endswith(".aside"), f"{path} was left"
