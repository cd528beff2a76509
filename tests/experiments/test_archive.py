"""Archives of runs: what is kept, and what is reported about damaged ones."""

import gzip
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helpers.run_folders import make_run
from helpers.tuned import made
from lesson.core.errors import InputError
from lesson.experiments.archive import read_archive, write_archive
from lesson.experiments.run import Archived, Run, curve_columns, summary_of
from lesson.learn.metric import ACCURACY
from lesson.settings.settings import Settings


def text_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def with_curve(run: Run, curve: pd.DataFrame, clients: pd.DataFrame | None = None) -> Run:
    clients = pd.DataFrame() if clients is None else clients
    return replace(run, archived=Archived(run.name, {"torch": "2"}, curve, clients))


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Also infinite settings, lists, text, evaluations on clients, and why it diverged."""
    settings = Settings(deadline_s=math.inf, cpu_hz=(1e9, 2e9), rounds=50)
    clients = pd.DataFrame({"round": [5], "time_s": [100.0], "global_loss": [2.25], "accuracy_tier1": [None]})
    run = made(settings, [0.1, 0.2], "the loss of τ is no longer finite")
    run = with_curve(run, run.curve, clients)
    write_archive(tmp_path / "runs.jsonl.gz", [run])
    json.loads(text_of(tmp_path / "runs.jsonl.gz"), parse_constant=pytest.fail)
    (back,) = read_archive(tmp_path / "runs.jsonl.gz")
    assert back.settings == run.settings
    assert (back.name, back.diverged, back.versions, back.path) == (run.name, run.diverged, {"torch": "2"}, None)
    assert back.summary == run.summary
    pd.testing.assert_frame_equal(back.curve, run.curve[list(back.curve)])
    assert back.clients.to_dict("list") == clients.to_dict("list")


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    """In any order, on any day, and when an archive is read and written again."""
    runs = [made(Settings(seed=seed, rounds=50), [0.1, 0.5]) for seed in (1, 0)]
    for name, given in (("a.gz", runs), ("b.gz", runs[::-1])):
        write_archive(tmp_path / name, given)
    assert [run.seed for run in read_archive(tmp_path / "a.gz")] == [0, 1], "not ordered by name"
    write_archive(tmp_path / "c.gz", read_archive(tmp_path / "a.gz"))
    assert len({(tmp_path / name).read_bytes() for name in ("a.gz", "b.gz", "c.gz")}) == 1


def test_a_folder_gives_the_line_that_its_archived_run_gives(tmp_path: Path) -> None:
    """Without fields of the wall clock, which differ from call to call."""
    make_run(tmp_path / "one")
    run = Run.load(tmp_path / "one")
    write_archive(tmp_path / "folder.gz", [run])
    (back,) = read_archive(tmp_path / "folder.gz")
    write_archive(tmp_path / "again.gz", [back])
    assert (tmp_path / "again.gz").read_bytes() == (tmp_path / "folder.gz").read_bytes()
    assert back.summary == {name: one for name, one in run.summary.items() if not name.startswith("wall_")}
    assert list(back.curve) == list(curve_columns(ACCURACY))


def test_loss_and_energy_may_be_missing(tmp_path: Path) -> None:
    make_run(tmp_path / "no_energy", joules=None)
    whole = made(Settings(rounds=50), [0.1, 0.2])
    partly = with_curve(made(Settings(seed=1, rounds=50), []), whole.curve.assign(loss=[math.nan, 2.0]))
    empty = with_curve(
        made(Settings(seed=2, rounds=50), [], "at once"), pd.DataFrame(columns=list(curve_columns(ACCURACY)))
    )
    write_archive(tmp_path / "runs.gz", [Run.load(tmp_path / "no_energy"), whole, partly, empty])
    back = {run.name: run for run in read_archive(tmp_path / "runs.gz")}
    assert list(back["no_energy"].curve) == ["round", "time_s", "accuracy", "loss", "uploads"]
    assert list(back["lesson-mnist-seed0"].curve) == ["round", "time_s", "accuracy", "uploads", "energy_j"]
    losses = back["lesson-mnist-seed1"].curve["loss"]
    assert math.isnan(losses[0])
    assert losses[1] == 2.0
    assert back["lesson-mnist-seed2"].curve.empty


def test_there_are_no_runs_without_an_archive(tmp_path: Path) -> None:
    assert read_archive(tmp_path / "runs.jsonl.gz") == []


def zipped(content: bytes) -> bytes:
    """Compress without the time of day: test names contain the bytes, and must be the same in all processes."""
    return gzip.compress(content, mtime=0)


def damaged(**changes: Any) -> bytes:
    """Return an archive whose second line has been changed."""
    curve = {"round": [1], "time_s": [1.0], "accuracy": [0.5], "uploads": [1]}
    summary = summary_of(Settings(), pd.DataFrame(curve), "")
    line = {"name": "a", "diverged": "", "summary": summary, "clients": {}, "versions": {}, "format": 3, "settings": {}}
    line["curve"] = curve
    return zipped(f"{json.dumps(line)}\n{json.dumps(line | {'name': 'b'} | changes)}\n".encode())


WHOLE = damaged()
CURVE_LISTS = {"round": [1], "time_s": [1.0], "accuracy": [0.5]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not compressed", "line 1: "),
        (WHOLE[: len(WHOLE) // 2], "line 1: "),
        (WHOLE[:40] + b"\0\0\0\0" + WHOLE[44:], "line 1: "),
        (zipped(b"\xff\xfe"), "line 1: "),
        (zipped(b"{\n"), "line 1: "),
        (zipped(b"[]\n"), "line 1: "),
        (zipped(b"[" * 100_000), "line 1: "),
        (damaged(format=2), "line 2: format must be 3, got 2: another version of lesson wrote it"),
        (damaged(name=3), "line 2: "),
        (damaged(name="a"), "line 3: two runs have the same name"),
        (damaged(name="../a"), "line 2: name must be that of a folder"),
        (damaged(settings=[]), "line 2: settings: "),
        (damaged(summary={}), "line 2: summary.strategy is missing"),
        (damaged(settings={"data": {"beta": -1}}), "line 2: [data] beta must be > 0"),
        (damaged(curve={"round": [1]}), "line 2: "),
        (damaged(curve=CURVE_LISTS | {"accuracy": ["x"]}), "line 2: "),
        (damaged(curve=CURVE_LISTS | {"accuracy": [0.5, 0.6]}), "line 2: "),
    ],
)
def test_a_damaged_archive_is_reported_in_one_line(content: bytes, reason: str, tmp_path: Path) -> None:
    assert len(read_archive_of(WHOLE, tmp_path)) == 2
    with pytest.raises(InputError, match=rf"runs\.jsonl\.gz is damaged \({re.escape(reason)}") as error:
        read_archive_of(content, tmp_path)
    assert str(error.value).endswith("; restore a copy, or remove it to use only the folders of runs")
    assert "\n" not in str(error.value)


def read_archive_of(content: bytes, folder: Path) -> list[Run]:
    (folder / "runs.jsonl.gz").write_bytes(content)
    return read_archive(folder / "runs.jsonl.gz")


def test_a_file_that_is_small_only_when_compressed_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.experiments.archive.MAX_BYTES", len(gzip.decompress(WHOLE)) - 1)
    with pytest.raises(InputError, match=r"must have at most .* bytes when decompressed"):
        read_archive_of(WHOLE, tmp_path)
