"""Copies the folder of a run, which may be in progress, and the SuperLink's database.

    python back_up.py RUN_FOLDER TARGET [--database state.db]

TARGET gets a new subfolder named after the time. Checkpoints are copied before `metrics.jsonl`: a resumed run truncates
the metrics to the checkpoint, so the copy may have more lines than the checkpoint needs, but not fewer.
"""

import argparse
import contextlib
import shutil
import sqlite3
import time
from pathlib import Path

FIRST = ("config.toml", "checkpoint-before.safetensors", "checkpoint.safetensors")


def main() -> None:
    """Back up what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--database", type=Path)
    parser.add_argument("--keep", type=int, default=0, help="number of backups to keep; 0 keeps all of them")
    given = parser.parse_args()
    if not (given.run / "config.toml").is_file():
        parser.exit(2, f"error: {given.run} holds no run\n")
    if given.database is not None and not given.database.is_file():
        parser.exit(2, f"error: {given.database} does not exist\n")
    try:
        folder = back_up(given.run, given.target, given.database)
    except (OSError, sqlite3.Error) as error:
        parser.exit(3, f"error: {error}\n")
    print(folder)
    if given.keep > 0:
        for old in sorted(given.target.glob("[0-9]*T[0-9]*Z"))[: -given.keep]:
            shutil.rmtree(old)


def back_up(run: Path, target: Path, database: Path | None) -> Path:
    """Return the folder of a new backup. It has a temporary name until it is complete, and is removed if that fails."""
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    part = target / f".{name}.part"
    (part / "run").mkdir(parents=True)
    try:
        _copy(run, part / "run")
        if database is not None:
            source, copy = sqlite3.connect(database), sqlite3.connect(part / "state.db")
            with contextlib.closing(source), contextlib.closing(copy):
                source.backup(copy)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    part.rename(target / name)
    return target / name


def _copy(run: Path, folder: Path) -> None:
    others = sorted(path.name for path in run.iterdir() if path.is_file() and not path.name.startswith("."))
    for file in (*FIRST, *(other for other in others if other not in FIRST)):
        with contextlib.suppress(FileNotFoundError):  # a finished run has no checkpoints
            shutil.copy2(run / file, folder / file)


if __name__ == "__main__":
    main()
