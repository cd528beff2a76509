"""Cores that a process may use, errors, names and options of custom classes."""

import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest

from lesson import CheckedOptions
from lesson.core import cores
from lesson.core.errors import ArgumentError, InputError
from lesson.core.plugins import load_named


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, 4),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)
def test_affinity_and_containers_limit_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], usable: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2, 4, 6})
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores.num_cores() == usable


def test_argument_error_can_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(ArgumentError("num_seeds", "must be >= 1, got 0")))
    assert str(error) == "num_seeds must be >= 1, got 0"
    assert str(error.as_option()) == "--seeds must be >= 1, got 0"


@pytest.mark.parametrize(
    "name",
    [
        "none:Class",
        "pathlib:No",
        ":Class",
        "pathlib:",
        "./mine.py:Class",
        "mine.py:Class",
        "raising:Class",
        "quitting:Class",
    ],
)
def test_custom_classes_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "raising.py").write_text("1 / 0\n")
    (tmp_path / "quitting.py").write_text("raise SystemExit(1)\n")
    with pytest.raises(InputError, match=r"task '.*:\w*' cannot be loaded") as caught:
        load_named("task", name)
    assert "\n" not in str(caught.value)


def test_option_of_a_custom_strategy_that_is_no_number() -> None:
    @dataclass
    class Sampled(CheckedOptions):
        share: float = 0.5

    with pytest.raises(InputError, match=r"^share must be a number, got 'half'$"):
        Sampled(share="half")  # type: ignore[arg-type]
