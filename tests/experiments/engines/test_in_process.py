"""Runs in this process, one after the other."""

from pathlib import Path

import pytest

from helpers.runs import settings
from helpers.small_tasks import tiny_task
from helpers.trackers import Told
from lesson import InputError
from lesson.experiments.engines import InProcessEngine, Line
from lesson.runs.folder import RunFolder

ENGINE = InProcessEngine(task=tiny_task())


def test_runs_are_executed_in_order_and_failures_do_not_stop_others(tmp_path: Path) -> None:
    """With your own data set and model, and with trackers, which need not be copied."""
    plan = {tmp_path / name: settings(rounds=rounds) for name, rounds in (("a", 2), ("b", 3), ("c", 1))}
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").touch()
    told: list[tuple[str, Line]] = []
    tracker = Told()
    ENGINE.run(plan, lambda path, line: told.append((path.name, line)), [tracker])
    assert [(name, line["round"]) for name, line in told if "round" in line] == [("a", 1), ("a", 2), ("c", 1)]
    ends = [(name, line) for name, line in told if "round" not in line]
    assert [(name, "done" in line, line.get("kind")) for name, line in ends] == [
        ("a", True, None),
        ("b", False, "InputError"),
        ("c", True, None),
    ]
    assert ends[0][1].keys() == {"done", "accuracy", "time_s"}
    assert RunFolder(tmp_path / "a").finished()
    assert tracker.calls[1:4] == [1, 2, 2]


@pytest.mark.parametrize("error", [InputError("mine"), MemoryError("mine"), SystemExit(4), KeyboardInterrupt()])
def test_an_exception_of_the_listener_is_raised_and_is_no_failure_of_the_run(
    error: BaseException, tmp_path: Path
) -> None:
    heard: list[Line] = []

    def hear(_: Path, line: Line) -> None:
        heard.append(line)
        if line.get("round") == 2:
            raise error

    with pytest.raises(type(error)) as raised:
        ENGINE.run({tmp_path / "a": settings(rounds=3), tmp_path / "b": settings(rounds=3)}, hear)
    assert raised.value is error
    assert [line["round"] for line in heard] == [1, 2]
    assert not (tmp_path / "b").exists()
    ENGINE.run({tmp_path / "a": settings(rounds=3)}, lambda _, line: heard.append(line))
    assert heard[-1]["done"], "the run cannot be resumed"
