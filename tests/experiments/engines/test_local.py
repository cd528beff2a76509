"""When runs are begun, and when no more: with processes that are made up."""

import math
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lesson.experiments.engines import LocalEngine, local
from lesson.experiments.engines.trial import Line, killed
from lesson.runs.folder import RunFolder
from lesson.settings.settings import Settings

KILLED, CRASHED = -9, 1
UNFORESEEN = {"error": "it broke", "kind": "KeyError"}
LACKS_MEMORY = {"error": "not enough memory", "kind": "LackOfMemoryError"}

Follow = Callable[..., tuple[str, list[Line]]]


class MadeUp(local._Worker):
    """Whatever it is given, it ends with the same line, or its process does with a status; then time may be up."""

    engine: LocalEngine
    given: list[str]
    last: Line | int
    time_after: float

    def __init__(self, *_: object) -> None:
        status = self.last if isinstance(self.last, int) else 0
        nothing = SimpleNamespace(join=lambda *_: None, kill=lambda: None, is_alive=lambda: False, pid=None)
        self.process = SimpleNamespace(**vars(nothing), exitcode=status)  # type: ignore[assignment]
        self.pipe, self.theirs = Pipe()

    def give(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings
        self.given.append(path.name)
        if isinstance(self.last, int):
            self.theirs.close()
        else:
            self.theirs.send(self.last)

    def receive(self) -> Line:
        object.__setattr__(self.engine, "stop_at_s", self.time_after)
        return super().receive()


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Follow:
    """Which of two runs a single process after the other was given, and what was told."""

    def run(last: Line | int, stop_at_s: float = math.inf, time_after: float = math.inf) -> tuple[str, list[Line]]:
        engine, given = LocalEngine(1, max_restarts=1, stop_at_s=stop_at_s), list[str]()
        made_up = {"engine": engine, "given": given, "last": last, "time_after": time_after}
        monkeypatch.setattr(local, "_Worker", type("Worker", (MadeUp,), made_up))
        settings = Settings(run={"device": "cpu"})
        told: list[Line] = []
        engine.run({tmp_path / "a": settings, tmp_path / "b": settings}, lambda _, line: told.append(line))
        return "".join(given), told

    return run


@pytest.mark.parametrize(
    ("last", "given"), [({"done": True}, "ab"), (UNFORESEEN, "ab"), (CRASHED, "ab"), (KILLED, "aabb")]
)
def test_runs_are_begun_one_after_the_other_while_there_is_time(last: Line | int, given: str, follow: Follow) -> None:
    assert follow(last)[0] == given
    assert follow(last, time_after=0.0)[0] == "a"
    assert follow(last, stop_at_s=0.0) == ("", [])


def test_a_run_is_resumed_after_a_kill_and_fails_after_too_many(follow: Follow) -> None:
    resumed, failed = {"killed": 1}, killed(2, "signal 9")
    assert follow(KILLED)[1] == [resumed, failed] * 2


def test_a_run_whose_process_is_killed_as_time_is_up_has_not_failed(follow: Follow) -> None:
    assert follow(KILLED, time_after=0.0)[1] == [{"killed": 1}]


Events = list[tuple[str, Line]]


@pytest.fixture
def execute_two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[str, Events]]:
    """Executes runs a and b at once, and returns which runs processes were given, and what was told.

    Runs in `lacking` run out of memory once. In between, run a does not end before `a_ends` was told about b.
    """

    def run(lacking: str, a_ends: str = "") -> tuple[str, Events]:
        engine, given, told = LocalEngine(2), list[str](), Events()
        pipes: dict[str, Connection] = {}

        class Worker(MadeUp):
            def give(self, path: Path, settings: Settings) -> None:
                self.path, self.settings, pipes[path.name] = path, settings, self.theirs
                given.append(path.name)
                if path.name in lacking and given.count(path.name) == 1:
                    self.theirs.send(LACKS_MEMORY)
                elif path.name == "b" or not a_ends:
                    self.theirs.send({"done": True})

        def hear(path: Path, line: Line) -> None:
            told.append((path.name, line))
            if path.name == "b" and a_ends in line:
                pipes["a"].send({"done": True})

        made_up = {"engine": engine, "given": given, "last": {}, "time_after": math.inf}
        monkeypatch.setattr(local, "_Worker", type("Worker", (Worker,), made_up))
        settings = Settings(run={"device": "cpu"})
        engine.run({tmp_path / "a": settings, tmp_path / "b": settings}, hear)
        return "".join(given), told

    return run


DONE: Line = {"done": True}


def test_a_run_that_runs_out_of_memory_waits_until_another_has_ended(execute_two: Any) -> None:
    given, told = execute_two("b", a_ends="postponed")
    assert given == "abb"
    assert told == [("b", {"postponed": 1}), ("a", DONE), ("b", DONE)]


def test_a_run_that_ran_out_of_memory_starts_again_if_the_others_have_ended_meanwhile(execute_two: Any) -> None:
    given, told = execute_two("b")
    assert given == "abb"
    assert told[-1] == ("b", DONE)
    assert ("a", DONE) in told
    assert not any("error" in line for _, line in told)


def test_if_all_runs_have_run_out_of_memory_they_are_executed_one_after_the_other(execute_two: Any) -> None:
    given, told = execute_two("ab")
    assert sorted(given) == ["a", "a", "b", "b"]
    assert [line for _, line in told if "done" in line] == [DONE] * 2
    assert not any("error" in line for _, line in told)


def test_a_run_that_is_alone_and_runs_out_of_memory_fails(follow: Follow) -> None:
    assert follow(LACKS_MEMORY) == ("ab", [LACKS_MEMORY] * 2)


@pytest.mark.parametrize("seconds", [1e7, 1e300, math.inf])
def test_any_time_can_be_waited_for(seconds: float, follow: Follow) -> None:
    """poll() of milliseconds fails beyond 2³¹, some 24 days."""
    stop_at_s = time.monotonic() + seconds
    assert follow({"done": True}, stop_at_s, time_after=stop_at_s) == ("ab", [{"done": True}] * 2)


@pytest.mark.slow
def test_runs_stop_at_a_time_with_a_checkpoint(tmp_path: Path) -> None:
    settings = Settings(strategy={"name": "fedcs"}, run={"time_budget_s": 1e9, "eval_every_s": 1e6, "device": "cpu"})
    paths, engine, begun = [tmp_path / name for name in "abc"], LocalEngine(2), set[Path]()

    def hear(path: Path, _: Line) -> None:
        begun.add(path)
        if len(begun) == 2 and engine.stop_at_s == math.inf:
            object.__setattr__(engine, "stop_at_s", time.monotonic() + 0.1)

    engine.run(dict.fromkeys(paths, settings), hear)
    assert [RunFolder(path).checkpoint.exists() for path in paths] == [True, True, False]
