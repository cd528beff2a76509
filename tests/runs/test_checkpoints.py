"""Damaged checkpoints: noticed, told, and the one before leads to the same end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from helpers.resuming import StoppedError
from helpers.runs import PARTS, content, settings
from lesson import InputError
from lesson.learn.build import build
from lesson.runs.checkpoints import packed, unpacked
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder

STOP = 12


def flip(path: Path, place: int) -> None:
    found = bytearray(path.read_bytes())
    found[place] ^= 1
    path.write_bytes(found)


def of_another_run(path: Path) -> None:
    path.write_bytes(packed({"metrics_bytes": 0}, {"simulation.x": np.zeros(3)}))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "header only": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "a bit of the data": lambda path: flip(path, -5),
    "a bit in the middle": lambda path: flip(path, path.stat().st_size * 3 // 4),
    "a bit of the state": lambda path: flip(path, path.read_bytes().index(b"metrics_bytes") + 17),
    "a bit of the length": lambda path: flip(path, 6),
    "garbage": lambda path: path.write_bytes(b"\xff\x00garbage" * 100),
    "nothing in it": lambda path: path.write_bytes(b""),
    "values without end": lambda path: path.write_bytes(
        safetensors.numpy.save({"x": np.zeros(1)}, {"state": "[" * 100_000})
    ),
    "no values": lambda path: path.write_bytes(safetensors.numpy.save({"x": np.zeros(1)})),
    "a list": lambda path: path.write_bytes(safetensors.numpy.save({"x": np.zeros(1)}, {"state": "[]"})),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("whole") / "run"
    execute(settings(), path, **PARTS)
    return content(path)


@pytest.fixture
def broken(tmp_path: Path) -> RunFolder:
    """Broken off after twelve rounds and eleven checkpoints."""

    def break_off(line: dict[str, Any]) -> None:
        if line["round"] == STOP:
            raise StoppedError

    with pytest.raises(StoppedError):
        execute(settings(checkpoint_every_s=1e-9), tmp_path / "run", progress=break_off, **PARTS)
    return RunFolder(tmp_path / "run")


def test_the_previous_checkpoint_is_kept(broken: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    newest, before = (unpacked(path)[0]["metrics_bytes"] for path in (broken.checkpoint, broken.before))
    lines = broken.metrics.read_bytes().splitlines(keepends=True)
    assert (newest, before) == tuple(sum(map(len, lines[:count])) for count in (STOP - 1, STOP - 2))
    execute(settings(), broken.path, resume=True, **PARTS)
    assert "note" not in capsys.readouterr().err
    assert not list(broken.path.glob("checkpoint*"))


@pytest.mark.parametrize("damage", [*DAMAGE, "gone"])
def test_a_run_with_a_damaged_checkpoint_resumes_from_the_previous_one(
    broken: RunFolder, damage: str, whole: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGE.get(damage, Path.unlink)(broken.checkpoint)
    execute(settings(), broken.path, resume=True, **PARTS)
    told = capsys.readouterr().err
    said = "does not exist" if damage == "gone" else "cannot be used ("
    assert told.startswith(f"note: {broken.checkpoint} {said}")
    assert told.endswith("; resuming from the previous checkpoint\n")
    assert told.count("\n") == 1
    assert content(broken.path) == whole


@pytest.mark.parametrize("damage", DAMAGE)
def test_two_damaged_checkpoints_are_an_error(broken: RunFolder, damage: str) -> None:
    for path in (broken.checkpoint, broken.before):
        DAMAGE[damage](path)
    with pytest.raises(InputError, match=r"checkpoint.safetensors cannot be used \(.*\); remove the folder and rerun"):
        execute(settings(), broken.path, resume=True, **PARTS)
    assert broken.config.exists()


def test_a_checkpoint_that_was_only_moved_is_reported(broken: RunFolder) -> None:
    of_another_run(broken.checkpoint)
    with pytest.raises(InputError, match=r"checkpoint.safetensors does not match this run .*; remove the folder"):
        execute(settings(), broken.path, resume=True, **PARTS)


def test_a_checkpoint_of_another_format_is_not_resumed(broken: RunFolder) -> None:
    values, tensors = unpacked(broken.checkpoint)
    broken.checkpoint.write_bytes(safetensors.numpy.save(tensors, {"state": json.dumps(values)}))
    broken.before.unlink()
    message = r"checkpoint.safetensors cannot be used \(its format is None, not 4: another version of lesson wrote it\)"
    with pytest.raises(InputError, match=message):
        execute(settings(), broken.path, resume=True, **PARTS)


def test_a_damaged_checkpoint_never_takes_the_place_of_the_whole_one(
    broken: RunFolder, whole: dict[str, bytes]
) -> None:
    """Broken off again, in the middle of the next rotation: the newest has moved, the next is not yet there."""
    DAMAGE["garbage"](broken.checkpoint)
    broken.load(build(settings(), **PARTS))
    assert unpacked(broken.checkpoint)
    broken.checkpoint.replace(broken.before)
    execute(settings(), broken.path, resume=True, **PARTS)
    assert content(broken.path) == whole


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_a_kill_while_checkpoints_change_places_leaves_a_whole_one(
    broken: RunFolder, moment: str, whole: dict[str, bytes]
) -> None:
    """The new one is written under a temporary name, the old one is moved, the new one takes its place."""
    aside = broken.path / ".checkpoint.safetensors.aside"
    aside.write_bytes(broken.checkpoint.read_bytes())
    if moment != "before":
        broken.checkpoint.replace(broken.before)
    if moment == "after":
        aside.replace(broken.checkpoint)
    execute(settings(), broken.path, resume=True, **PARTS)
    assert content(broken.path) == whole
    assert not aside.exists()
