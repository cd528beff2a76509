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
from helpers.scripted import ids
from lesson import FedAsync, InputError
from lesson.core.errors import DivergedError
from lesson.learn.backend import ChunkRule
from lesson.learn.build import TrainingRun
from lesson.learn.cpu import CpuBackend
from lesson.learn.divergence import check_finite
from lesson.learn.evaluation import Evaluator
from lesson.runs.execute import execute
from lesson.runs.resolve import Resolved
from lesson.settings.settings import Settings
from lesson.strategies import FedAT
from lesson.strategies.base import Merge, RoundPlan, ServerView, Updates


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set how much work of a run on the CPU may wait, in local steps, and whether it may be executed at any time."""

    def change(local_steps: int, *, ends_anywhere: bool = True) -> None:
        monkeypatch.setattr(CpuBackend, "rule", ChunkRule(local_steps, ends_anywhere))

    return change


CASES: dict[str, Settings] = {name: settings(name) for name in ("fedasync", "fedat", "ca2fl", "fadas", "tifl")} | {
    "client scores": settings("lesson", client_scores_every_s=60.0),
    "minibatches": settings("lesson-filled"),
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


def test_lines_are_delayed_by_a_limited_number_of_rounds(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(10**6)
    monkeypatch.setattr("lesson.learn.pipeline.MAX_CHUNK_ROUNDS", 7)
    made, rounds = list[TrainingRun](), list[tuple[int, int]]()

    def progress(line: dict[str, Any]) -> None:
        rounds.append((line["round"], made[0].pipeline.loop.round))

    execute(settings("fedasync", eval_every_s=1e6), tmp_path / "run", make=tapped(made), progress=progress, **PARTS)
    assert rounds == [(line, min(30, -(-line // 7) * 7)) for line in range(1, 31)]


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


def test_strategy_may_use_its_arrays_again(tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is executed after later rounds were planned; until then, a merge must not change."""
    rule(10**6)
    execute(settings("fedat"), tmp_path / "kept", **PARTS)
    earlier, merge = [ids()], FedAT.merge

    def merge_again(self: FedAT, view: ServerView, arrived: Updates) -> Merge:
        earlier[0][:] = -1
        given = merge(self, view, arrived)
        earlier[0] = given.updates.copy()
        return replace(given, updates=earlier[0])

    monkeypatch.setattr(FedAT, "merge", merge_again)
    execute(settings("fedat"), tmp_path / "used again", **PARTS)
    assert content(tmp_path / "used again") == content(tmp_path / "kept")


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
