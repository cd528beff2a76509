"""The clock runs ahead of training: how far it does changes no result."""

import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.lanes import overflow_from
from helpers.runs import PARTS, content, settings
from lesson import FedAsync, InputError
from lesson.core.errors import DivergedError, RunStoppedError
from lesson.learn.backend import ChunkRule
from lesson.learn.build import TrainingRun
from lesson.learn.cpu import CpuBackend
from lesson.learn.divergence import check_finite
from lesson.learn.evaluation import Evaluator
from lesson.runs.execute import execute
from lesson.runs.resolve import Resolved
from lesson.settings.settings import Settings
from lesson.strategies.base import GroupMemory, Merge, RoundPlan, ServerView, Updates


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set how much work of a run on the CPU may wait, in local steps, and whether it may be executed at any time."""

    def change(local_steps: int, *, ends_anywhere: bool = True) -> None:
        monkeypatch.setattr(CpuBackend, "rule", ChunkRule(local_steps, ends_anywhere))

    return change


CASES: dict[str, Settings] = {name: settings(name) for name in ("fedasync", "fedat", "ca2fl", "fadas", "tifl")} | {
    "client scores": settings("lesson", client_scores_every_s=60.0),
    "samples": settings("lesson-fitted"),
    "signal of updates": settings("refl").with_strategy("refl", {"clients_per_round": 2, "hold_off": 0}),
    "several steps": settings("fedasync", trainer="reference").with_changes(local_steps=3),
}


@pytest.mark.parametrize("name", CASES)
def test_results_do_not_depend_on_the_chunks(name: str, tmp_path: Path, rule: Any) -> None:
    for steps in (1, 60, 10**6):
        rule(steps)
        execute(CASES[name], tmp_path / str(steps), **PARTS)
    for steps in (60, 10**6):
        assert content(tmp_path / str(steps)) == content(tmp_path / "1")


class Tidy(FedAsync):
    """Reuses the array of the clients whose updates it was shown in the round before."""

    _last: Any = None

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        if self._last is not None:
            self._last[:] = 0
        self._last = arrived.client
        return super().merge(view, arrived)


class TidyGroups(Tidy):
    """Has two groups, and reuses the ids in its merges."""

    _ids: Any = None

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        if self._ids is not None:
            self._ids[:] = 0
        merge = super().merge(view, arrived)
        self._ids = merge.updates
        names = [str(client % 2) for client in arrived.client.tolist()]
        return replace(merge, weights=np.ones(len(names)), groups=GroupMemory(names, dict.fromkeys(names, 0.1)))


@pytest.mark.parametrize("strategy", [Tidy, TidyGroups])
def test_strategy_may_reuse_its_arrays_while_a_chunk_waits(
    strategy: type[Tidy], tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lesson.runs.resolve.make_strategy", lambda *_: strategy())
    for steps in (1, 60):
        rule(steps)
        execute(settings("fedasync"), tmp_path / str(steps), **PARTS)
    assert content(tmp_path / "60") == content(tmp_path / "1")


def tapped(made: list[TrainingRun], interrupt_in: int = 0) -> Any:
    """Return a function for `make` of `execute` that keeps the run, and interrupts it by Ctrl-C in a round."""

    def make(resolved: Resolved, num_threads: int | None) -> TrainingRun:
        made.append(resolved.build(num_threads))
        loop, step = made[-1].pipeline.loop, made[-1].pipeline.step

        def interrupted(*given: Any) -> Any:
            if loop.round == interrupt_in:
                os.kill(os.getpid(), signal.SIGINT)
            return step(*given)

        if interrupt_in:
            made[-1].pipeline.step = interrupted  # type: ignore[method-assign]
        return made[-1]

    return make


def test_run_resumes_at_the_end_of_a_chunk(tmp_path: Path, rule: Any) -> None:
    """As on a GPU: a checkpoint that is requested in the middle of a chunk is written at its end.

    A round costs 9 steps, so that chunks of 60 end after 7 rounds.
    """
    rule(60, ends_anywhere=False)
    made = list[TrainingRun]()
    execute(settings("fedasync"), tmp_path / "whole", **PARTS)
    with pytest.raises(KeyboardInterrupt):
        execute(settings("fedasync"), tmp_path / "broken", make=tapped(made, interrupt_in=8), **PARTS)
    assert made[0].pipeline.loop.round == 14
    execute(settings("fedasync"), tmp_path / "broken", resume=True, **PARTS)
    assert content(tmp_path / "broken") == content(tmp_path / "whole")


def written_after(strategy: str, folder: Path) -> list[int]:
    """Return after which round each line of a run is written."""
    made, rounds = list[TrainingRun](), list[int]()

    def progress(_: dict[str, Any]) -> None:
        rounds.append(made[0].pipeline.loop.round)

    execute(settings(strategy, eval_every_s=1e6), folder, make=tapped(made), progress=progress, **PARTS)
    return rounds


def test_lines_are_delayed_by_a_limited_number_of_rounds(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(10**6)
    monkeypatch.setattr("lesson.learn.pipeline.MAX_CHUNK_ROUNDS", 7)
    assert written_after("fedasync", tmp_path / "run") == [min(30, -(-line // 7) * 7) for line in range(1, 31)]


def test_gpu_computes_a_chunk_while_the_clock_builds_the_next(tmp_path: Path, rule: Any) -> None:
    """Chunks end after 7 rounds, as above; the results of one are known at the end of the next."""
    rule(60, ends_anywhere=False)
    assert written_after("fedasync", tmp_path / "run") == [min(30, -(-line // 7) * 7 + 7) for line in range(1, 31)]


def test_reading_a_signal_ends_the_chunk(tmp_path: Path, rule: Any) -> None:
    """Oort reads one in every round, so that there would be nothing to train together with this round."""
    rule(10**6)
    assert written_after("oort", tmp_path / "run") == list(range(1, 31))


def test_updates_are_trained_together_across_rounds(rule: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """FedAsync aggregates one update per round; the six clients start together, so the first wave has six cohorts."""
    from lesson.learn.fused import FusedTrainer

    sums, waves = FusedTrainer.sums, list[int]()
    monkeypatch.setattr(FusedTrainer, "sums", lambda self, cohorts: waves.append(len(cohorts)) or sums(self, cohorts))  # type: ignore[func-returns-value]
    rule(10**6)
    execute(settings("fedasync", eval_every_s=1e6), tmp_path / "run", **PARTS)
    assert waves[0] > 1
    assert sum(waves) == 30


def same_failure(chosen: Settings, folder: Path, rule: Any, kind: type[Exception] = DivergedError) -> list[str]:
    """Return the lines of a run that fails; fail if they or the message depend on the chunk."""
    found = []
    for name, given in {"rounds": (1, True), "ahead": (10**6, True), "as on a GPU": (30, False)}.items():
        rule(given[0], ends_anywhere=given[1])
        with pytest.raises(kind) as caught:
            execute(chosen, folder / name, **PARTS)
        found.append((str(caught.value), (folder / name / "metrics.jsonl").read_text()))
    assert found[0] == found[1] == found[2]
    return found[0][1].splitlines()


def test_diverging_run_stops_as_it_would_round_by_round(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder has the same lines, with evaluations, up to the round before, and the message is the same."""
    overflow_from(8, monkeypatch)
    lines = same_failure(settings("lesson", eval_every_s=20.0), tmp_path, rule)
    assert 7 <= len(lines) < 30
    assert all("accuracy" in line for line in lines)


class Failing(FedAsync):
    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        if view.round == 20:
            raise InputError("round 20 is not supported")
        return super().open_round(view, rng)


def test_strategy_that_fails_leaves_the_lines_before_it(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lesson.runs.resolve.make_strategy", lambda *_: Failing())
    assert len(same_failure(settings("fedasync"), tmp_path, rule, InputError)) == 19


def test_evaluation_that_fails_leaves_the_lines_before_it(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third evaluation on the clients' samples fails, in round 15 of 20 s."""
    scores, numbers = Evaluator.client_scores, itertools.count(1)

    def failing(self: Evaluator, model: Any) -> Any:
        check_finite("loss", next(numbers) % 3 != 0, model.newest_cohort)
        return scores(self, model)

    monkeypatch.setattr(Evaluator, "client_scores", failing)
    assert len(same_failure(settings(client_scores_every_s=100.0), tmp_path, rule)) == 14


class Longer(FedAsync):
    """Lets clients take two steps from round 4 on, which the fused trainer cannot."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        plan = super().open_round(view, rng)
        return replace(plan, local_steps=np.full(len(plan.starts), 1 if view.round < 4 else 2))


def test_updates_that_cannot_be_trained_leave_the_lines_before_them(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that starts in round 4 arrives in round 9."""
    monkeypatch.setattr("lesson.runs.resolve.make_strategy", lambda *_: Longer())
    assert len(same_failure(settings("fedasync", trainer="fused"), tmp_path, rule, InputError)) == 8


def test_strategy_that_cannot_be_saved_leaves_no_folder(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unsaved(FedAsync):
        def merge(self, view: ServerView, arrived: Updates) -> Merge:
            self.rounds = itertools.count()
            return super().merge(view, arrived)

    monkeypatch.setattr("lesson.runs.resolve.make_strategy", lambda *_: Unsaved())
    for steps in (1, 10**6):
        rule(steps)
        with pytest.raises(InputError, match="cannot hold rounds"):
            execute(settings("fedasync"), tmp_path / "run", **PARTS)
        assert not (tmp_path / "run").exists()


def test_line_that_cannot_be_written_is_the_error_even_if_a_later_round_diverges(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the run would count as diverged, though rounds before are missing.

    Lines of the same chunk are written together, up to the round that diverges.
    """
    overflow_from(8, monkeypatch)

    def progress(line: dict[str, Any]) -> None:
        if line["round"] == 5:
            raise RunStoppedError("the disk is full")

    for steps, num_lines in ((1, 5), (10**6, 7)):
        rule(steps)
        with pytest.raises(RunStoppedError, match="the disk is full"):
            execute(settings("lesson"), tmp_path / str(steps), progress=progress, **PARTS)
        assert len((tmp_path / str(steps) / "metrics.jsonl").read_text().splitlines()) == num_lines
