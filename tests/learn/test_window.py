"""The clock runs ahead of training: windows change nothing but when and how models are computed."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.model_servers import make_server, updates
from helpers.runs import PARTS, content, settings
from helpers.small_tasks import tiny_workload
from lesson.core.errors import DivergedError
from lesson.learn import window
from lesson.learn.backend import WindowRule
from lesson.learn.build import TrainingRun, build
from lesson.learn.cohort import Cohort
from lesson.learn.cpu import CpuBackend
from lesson.learn.divergence import check_finite
from lesson.learn.evaluation import Evaluator
from lesson.learn.fused import FusedTrainer
from lesson.learn.model_server import GlobalModel, ModelServer
from lesson.learn.scores import ClientScores
from lesson.runs.execute import execute
from lesson.settings.settings import Settings
from lesson.strategies.base import Merge

Wave = list[tuple[int, tuple[int, ...]]]
"""Base version and clients of each cohort that was trained in a wave."""


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the window of all runs on the CPU."""

    def change(local_steps: int, *, ends_anywhere: bool = True) -> None:
        monkeypatch.setattr(CpuBackend, "window", WindowRule(local_steps, ends_anywhere))

    return change


@pytest.fixture
def waves(monkeypatch: pytest.MonkeyPatch) -> list[Wave]:
    """The cohorts that the fused trainer trains together."""
    found, sums = list[Wave](), FusedTrainer.sums

    def recorded(self: FusedTrainer, cohorts: Sequence[Cohort]) -> list[torch.Tensor]:
        found.append([(cohort.base_version, tuple(cohort.client.tolist())) for cohort in cohorts])
        return sums(self, cohorts)

    monkeypatch.setattr(FusedTrainer, "sums", recorded)
    return found


def with_training(strategy: str, **training: Any) -> Settings:
    chosen = settings(strategy)
    return chosen.model_copy(update={"training": chosen.training.model_copy(update=training)})


@pytest.mark.parametrize(
    "chosen",
    [
        settings("lesson"),
        settings("fedasync"),
        settings("fedbuff"),
        settings("fedat"),
        settings("lesson-memory"),
        settings("tifl"),  # reads a signal
        settings("lesson-filled"),
        with_training("fedasync", local_steps=3),
    ],
    ids=lambda chosen: f"{chosen.strategy.name}-{chosen.training.local_steps}",
)
def test_results_do_not_depend_on_the_window(chosen: Settings, tmp_path: Path, rule: Any) -> None:
    for steps in (1, 40, 10**6):
        rule(steps)
        execute(chosen, tmp_path / str(steps), **PARTS)
    assert content(tmp_path / "40") == content(tmp_path / "1")
    assert content(tmp_path / str(10**6)) == content(tmp_path / "1")


def queued_server(local_steps: int = 10**6, **parts: Any) -> ModelServer:
    server = make_server(tiny_workload(4), trainer="fused", **parts)
    server._window = window.Window(WindowRule(local_steps))
    return server


def merge_of_one(server: ModelServer, client: int, base: int, version: int) -> None:
    merge = Merge(np.array([0]), np.array([0.5]))
    server.merge(updates([client], [base], [1.0]), merge.weights, merge, version, round=version + 1)


def test_a_wave_has_every_cohort_whose_base_exists(waves: list[Wave]) -> None:
    """Clients 0, 1 and 2 start from version 0, client 0 again from version 1, client 1 from version 2.

    Version 0 exists, so the first wave trains the cohorts of the first three merges. Versions 1 and 2 exist after two
    of them, but the next wave starts only when the fourth merge needs it.
    """
    server = queued_server()
    for version, (client, base) in enumerate([(0, 0), (1, 0), (2, 0), (0, 1), (1, 2)]):
        merge_of_one(server, client, base, version)
    assert (list(server.versions), waves) == ([0], [])
    server.flush()
    assert waves == [[(0, (0,)), (0, (1,)), (0, (2,))], [(1, (0,)), (2, (1,))]]
    assert list(server.versions) == [0, 1, 2, 3, 4, 5]
    server.close()


def test_waves_are_limited(waves: list[Wave], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cohorts of the earliest aggregations come first: two in the first wave, the third in the next."""
    monkeypatch.setattr(window, "MAX_WAVE_COHORTS", 2)
    server = queued_server()
    for version in range(3):
        merge_of_one(server, version, 0, version)
    server.flush()
    assert waves == [[(0, (0,)), (0, (1,))], [(0, (2,))]]
    server.close()


def test_a_window_is_executed_when_it_is_full() -> None:
    """A merge of one client with one step costs 1 + 8."""
    server = queued_server(18)
    merge_of_one(server, 0, 0, 0)
    assert list(server.versions) == [0]
    assert server.first_open_round == 1
    merge_of_one(server, 1, 0, 1)
    assert list(server.versions) == [0, 1, 2]
    assert server.first_open_round == np.inf
    server.close()


def test_a_version_is_freed_after_the_aggregations_queued_before() -> None:
    server = queued_server()
    merge_of_one(server, 0, 0, 0)
    server.forget(0)
    merge_of_one(server, 1, 1, 1)
    server.forget(1)
    assert list(server.versions) == [0]
    server.flush()
    assert list(server.versions) == [2]
    server.close()


@pytest.mark.parametrize(
    "read", [lambda server: server.model(1), lambda server: server.state()], ids=["model", "state"]
)
def test_reading_executes_what_is_queued(read: Any) -> None:
    server = queued_server()
    merge_of_one(server, 0, 0, 0)
    read(server)
    assert list(server.versions) == [0, 1]
    server.close()


def test_a_signal_executes_what_is_queued_when_it_is_read() -> None:
    server = queued_server(needs=frozenset({"confirmation"}))
    merge_of_one(server, 0, 0, 0)
    merge_of_one(server, 1, 0, 1)
    signals = server.signals(frozenset({"confirmation"}), 2)
    assert list(server.versions) == [0]
    first = signals["confirmation"]
    assert list(server.versions) == [0, 1, 2]
    at_once = queued_server(1, needs=frozenset({"confirmation"}))
    merge_of_one(at_once, 0, 0, 0)
    merge_of_one(at_once, 1, 0, 1)
    assert at_once.signals(frozenset({"confirmation"}), 2)["confirmation"] == first
    at_once.close()
    server.close()


def test_nothing_waits_if_updates_can_be_rejected() -> None:
    """A rejection changes weights and who starts next, so it must be known in its round."""
    server = queued_server(guards={"norm": "reject"})
    merge_of_one(server, 0, 0, 0)
    assert list(server.versions) == [0, 1]
    server.close()


def test_an_evaluation_waits_for_its_model() -> None:
    run = build(settings("fedasync"), **PARTS)
    for _ in range(3):
        run.loop.step()
    pending = run.begin_score()
    assert not pending.ready()
    run.loop.step()
    assert list(run.server.versions) == [0]
    score = pending.result()
    assert run.loop.version > 3
    assert pending.ready()
    reread = build(settings("fedasync"), **PARTS)
    for _ in range(3):
        reread.loop.step()
    assert reread.evaluator.score(reread.model) == score
    run.close()
    reread.close()


def test_a_run_that_diverges_stops_as_it_would_round_by_round(tmp_path: Path, rule: Any) -> None:
    """The folder has the same lines, with evaluations, up to the round before, and the message is the same."""
    chosen = with_training("lesson", learning_rate=1e30, lr_cap=np.inf)
    messages = []
    for steps in (1, 10**6):
        rule(steps)
        with pytest.raises(DivergedError) as caught:
            execute(chosen, tmp_path / str(steps), **PARTS)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    lines = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("1", str(10**6))]
    assert lines[0] == lines[1] != b""


def test_a_loss_that_is_not_finite_stops_a_run_as_it_would_round_by_round(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third evaluation on the clients' samples fails; lines up to the round before it are written."""
    by_client, number = Evaluator.client_scores, 0

    def failing(self: Evaluator, model: GlobalModel) -> ClientScores:
        nonlocal number
        number += 1
        check_finite("loss", number < 3, model.newest_cohort)
        return by_client(self, model)

    monkeypatch.setattr(Evaluator, "client_scores", failing)
    messages = []
    for steps in (1, 10**6):
        rule(steps)
        number = 0
        with pytest.raises(DivergedError, match="the loss is no longer finite") as caught:
            execute(settings(client_scores_every_s=100.0), tmp_path / str(steps), **PARTS)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    lines = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("1", str(10**6))]
    assert lines[0] == lines[1]
    assert len(lines[0].splitlines()) == 14  # rounds of 20 s


def test_windows_that_affect_rounding_end_at_the_same_rounds_after_a_resume(
    tmp_path: Path, rule: Any, waves: list[Wave]
) -> None:
    """As on a GPU: a checkpoint that is requested in the middle of a window is written at its end."""
    rule(60, ends_anywhere=False)
    execute(settings("fedasync"), tmp_path / "whole", **PARTS)
    whole = waves.copy()
    waves.clear()
    made = list[TrainingRun]()

    def make(*given: Any, **parts: Any) -> TrainingRun:
        made.append(build(*given, **parts))
        step, loop = made[-1].loop.step, made[-1].loop

        def interrupted(*until: float) -> Any:
            if loop.round == 8:  # in the second window: a round costs 9, so windows end after 7 rounds
                os.kill(os.getpid(), signal.SIGINT)
            return step(*until)

        loop.step = interrupted  # type: ignore[method-assign]
        return made[-1]

    with pytest.raises(KeyboardInterrupt):
        execute(settings("fedasync"), tmp_path / "broken", make=make, **PARTS)
    assert made[0].loop.round == 14
    execute(settings("fedasync"), tmp_path / "broken", resume=True, **PARTS)
    assert waves == whole
    assert content(tmp_path / "broken") == content(tmp_path / "whole")
