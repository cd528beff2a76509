"""Archives of runs."""

import gzip
import json
import math
from pathlib import Path

import pytest

from helpers.run_folders import make_run
from helpers.tuned import made
from lesson.core.errors import InputError
from lesson.experiments.archive import read_archive, write_archive
from lesson.experiments.run import Run
from lesson.settings.settings import Settings


def test_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    """In any order, and when an archive is read and written again; a folder gives no fields of the wall clock."""
    make_run(tmp_path / "one")
    special = made(Settings(deadline_s=math.inf, cpu_hz=(1e9, 2e9), rounds=50), [0.1], "the loss of τ is infinite")
    runs = [special, made(Settings(seed=1, rounds=50), [0.1, 0.5]), Run.load(tmp_path / "one")]
    for name, given in (("a.gz", runs), ("b.gz", runs[::-1])):
        write_archive(tmp_path / name, given)
    found = read_archive(tmp_path / "a.gz")
    json.loads(gzip.decompress((tmp_path / "a.gz").read_bytes()).splitlines()[0], parse_constant=pytest.fail)
    assert [(run.name, run.settings, run.diverged) for run in found] == [
        (run.name, run.settings, run.diverged) for run in runs
    ]
    assert found[2].summary == {key: one for key, one in runs[2].summary.items() if not key.startswith("wall_")}
    write_archive(tmp_path / "c.gz", found)
    assert len({(tmp_path / name).read_bytes() for name in ("a.gz", "b.gz", "c.gz")}) == 1


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda line: line[:20], "line 1"),
        (lambda line: json.dumps(json.loads(line) | {"settings": {"data": {"beta": -1}}}), "beta must be > 0"),
        (lambda line: json.dumps(json.loads(line) | {"curve": {"round": [1]}}), "line 1"),
    ],
)
def test_damaged_line_is_reported(damage, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    write_archive(path, [made(Settings(rounds=50), [0.1])])
    line = gzip.decompress(path.read_bytes()).decode().strip()
    path.write_bytes(gzip.compress(damage(line).encode()))
    with pytest.raises(InputError, match=rf"runs\.jsonl\.gz is damaged.*{reason}"):
        read_archive(path)


def test_archive_may_be_missing_but_not_truncated(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    assert read_archive(path) == []
    write_archive(path, [made(Settings(rounds=50), [0.1])])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="is damaged"):
        read_archive(path)
