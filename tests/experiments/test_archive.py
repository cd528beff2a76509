"""Archives of runs."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from helpers.run_folders import make_run
from helpers.tuned import made
from lesson.core.errors import InputError
from lesson.experiments.archive import read_archive, write_archive
from lesson.experiments.run import Archived, Run
from lesson.settings.settings import Settings


def test_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Also infinite settings, lists, evaluations on clients, and the reason why it diverged."""
    settings = Settings(deadline_s=math.inf, cpu_hz=(1e9, 2e9), rounds=50)
    clients = pd.DataFrame({"round": [5], "time_s": [100.0], "global_loss": [2.25], "accuracy_tier1": [None]})
    run = made(settings, [0.1, 0.2], "the loss of τ is no longer finite")
    run = replace(run, archived=Archived(run.name, {"torch": "2"}, run.curve, clients))
    write_archive(tmp_path / "runs.jsonl.gz", [run])
    json.loads(gzip.decompress((tmp_path / "runs.jsonl.gz").read_bytes()), parse_constant=pytest.fail)
    (back,) = read_archive(tmp_path / "runs.jsonl.gz")
    assert back.settings == run.settings
    assert (back.name, back.diverged, back.versions, back.path) == (run.name, run.diverged, {"torch": "2"}, None)
    assert back.summary == run.summary
    pd.testing.assert_frame_equal(back.curve, run.curve[list(back.curve)])
    assert back.clients.to_dict("list") == clients.to_dict("list")


def test_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    """In any order, and when an archive is read and written again; a folder gives no fields of the wall clock."""
    make_run(tmp_path / "one")
    runs = [made(Settings(seed=seed, rounds=50), [0.1, 0.5]) for seed in (1, 0)] + [Run.load(tmp_path / "one")]
    for name, given in (("a.gz", runs), ("b.gz", runs[::-1])):
        write_archive(tmp_path / name, given)
    found = read_archive(tmp_path / "a.gz")
    assert [run.name for run in found] == ["lesson-mnist-seed0", "lesson-mnist-seed1", "one"]
    assert found[2].summary == {key: one for key, one in runs[2].summary.items() if not key.startswith("wall_")}
    write_archive(tmp_path / "c.gz", found)
    assert len({(tmp_path / name).read_bytes() for name in ("a.gz", "b.gz", "c.gz")}) == 1


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda line: line[:20], "line 1"),
        (lambda line: json.dumps(json.loads(line) | {"format": 2}), "format must be 3, got 2"),
        (lambda line: json.dumps(json.loads(line) | {"settings": {"data": {"beta": -1}}}), "beta must be > 0"),
        (lambda line: json.dumps(json.loads(line) | {"curve": {"round": [1]}}), "line 1"),
        (lambda line: f"{line}\n{line}", "the same name"),
    ],
)
def test_damaged_line_is_reported(damage, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    write_archive(path, [made(Settings(rounds=50), [0.1])])
    line = gzip.decompress(path.read_bytes()).decode().strip()
    path.write_bytes(gzip.compress(damage(line).encode()))
    with pytest.raises(InputError, match=rf"runs\.jsonl\.gz is damaged.*{reason}"):
        read_archive(path)


def test_archive_may_be_missing_but_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    assert read_archive(path) == []
    write_archive(path, [made(Settings(rounds=50), [0.1])])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="is damaged"):
        read_archive(path)
