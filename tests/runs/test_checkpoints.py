"""Damaged checkpoints are noticed, and the previous one leads to the same result."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.numpy

from helpers.resuming import StoppedError, stop_after
from helpers.runs import PARTS, content, settings
from lesson import InputError
from lesson.runs.checkpoints import unpacked
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder


def flip_a_bit(path: Path) -> None:
    found = bytearray(path.read_bytes())
    found[-5] ^= 1
    path.write_bytes(found)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "one bit": flip_a_bit,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("whole") / "run"
    execute(settings(rounds=16), path, **PARTS)
    return content(path)


@pytest.fixture
def broken(tmp_path: Path) -> RunFolder:
    """A run with checkpoints of rounds 10 and 11, interrupted in round 12."""
    often = settings(rounds=16, checkpoint_every_s=1e-9)
    with pytest.raises(StoppedError):
        execute(often, tmp_path / "run", progress=stop_after(12), **PARTS)
    return RunFolder(tmp_path / "run")


def resume(folder: RunFolder) -> None:
    execute(settings(rounds=16), folder.path, resume=True, **PARTS)


def test_newest_two_checkpoints_are_kept(broken: RunFolder) -> None:
    newest, before = (unpacked(path)[0]["metrics_bytes"] for path in (broken.checkpoint, broken.before))
    lines = broken.metrics.read_bytes().splitlines(keepends=True)
    assert (newest, before) == (sum(map(len, lines[:11])), sum(map(len, lines[:10])))
    resume(broken)
    assert not list(broken.path.glob("checkpoint*"))


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_checkpoint_is_replaced_by_the_previous_one(
    broken: RunFolder, damage: str, whole: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGE[damage](broken.checkpoint)
    resume(broken)
    note = capsys.readouterr().err
    assert str(broken.checkpoint) in note
    assert note.count("\n") == 1
    assert content(broken.path) == whole


def test_two_damaged_checkpoints_are_an_error(broken: RunFolder) -> None:
    for path in (broken.checkpoint, broken.before):
        DAMAGE["truncated"](path)
    with pytest.raises(InputError, match=r"checkpoint.safetensors cannot be used"):
        resume(broken)
    assert broken.config.exists()


def test_checkpoints_of_other_versions_are_rejected(broken: RunFolder) -> None:
    values, tensors = unpacked(broken.checkpoint)
    for path in (broken.checkpoint, broken.before):
        path.write_bytes(safetensors.numpy.save(tensors, {"state": json.dumps(values)}))
    with pytest.raises(InputError, match="another version of lesson"):
        resume(broken)


@pytest.mark.parametrize("moved", [False, True])
def test_kill_while_checkpoints_are_renamed_leaves_one(broken: RunFolder, moved: bool, whole: dict[str, bytes]) -> None:
    """The new one is written under a temporary name, the old one is moved, the new one takes its place."""
    aside = broken.path / ".checkpoint.safetensors.aside"
    aside.write_bytes(broken.checkpoint.read_bytes())
    if moved:
        broken.checkpoint.replace(broken.before)
    resume(broken)
    assert content(broken.path) == whole
    assert not aside.exists()
