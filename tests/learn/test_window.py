"""The clock runs ahead of training: windows change nothing but when and how models are computed."""

import os
import signal
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.model_servers import make_server, overflow_from, updates
from helpers.runs import PARTS, content, settings
from helpers.small_tasks import tiny_workload
from lesson import FedAsync, InputError
from lesson.core.errors import DivergedError
from lesson.learn import window
from lesson.learn.backend import WindowRule
from lesson.learn.build import TrainingRun, build
from lesson.learn.cohort import Cohort, plan_cohorts
from lesson.learn.cpu import CpuBackend
from lesson.learn.divergence import check_finite
from lesson.learn.evaluation import Evaluator
from lesson.learn.fused import FusedTrainer
from lesson.learn.model_server import GlobalModel, ModelServer
from lesson.learn.scores import ClientScores
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder
from lesson.settings.faults import FaultSettings
from lesson.settings.sections import ServerSettings
from lesson.settings.settings import Settings
from lesson.strategies.base import GroupMemory, Merge, RoundPlan, ServerView

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


REFL = Settings(strategy={"name": "refl", "clients_per_round": 2, "hold_off": 0}).strategy


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
        settings("ca2fl"),
        settings("fadas"),
        settings("lesson-memory"),
        settings("tifl"),  # reads a signal
        settings("refl").model_copy(update={"strategy": REFL}),  # reads a signal of updates in some rounds
        settings("lesson-filled"),
        settings("lesson", client_scores_every_s=60.0),
        with_training("fedasync", local_steps=3),
        with_training("lesson", local_steps=3),
        settings("fedbuff").model_copy(update={"server": ServerSettings(optimizer="adam", learning_rate=0.01)}),
        settings("fedasync").model_copy(update={"faults": FaultSettings(scaled=0.5)}),
    ],
    ids=lambda chosen: f"{chosen.strategy.name}-{chosen.training.local_steps}",
)
def test_results_do_not_depend_on_the_window(chosen: Settings, tmp_path: Path, rule: Any) -> None:
    """With several local steps, only two windows are compared, because worker processes take seconds to start."""
    sizes = (1, 40) if chosen.training.local_steps > 1 else (1, 40, 10**6)
    for steps in sizes:
        rule(steps)
        execute(chosen, tmp_path / str(steps), **PARTS)
    for steps in sizes[1:]:
        assert content(tmp_path / str(steps)) == content(tmp_path / "1")


def queued_server(local_steps: int = 10**6, **parts: Any) -> ModelServer:
    return make_server(tiny_workload(4), trainer="fused", window=WindowRule(local_steps), **parts)


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


def test_windows_follow_the_measured_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first window has one merge, which costs 9 and takes a second; then half of that would be right, or one merge.

    A window that takes no time at all leaves room for the rule's own limit.
    """
    seconds = [0.0, 1.0, 1.0, 1.0]
    monkeypatch.setattr(window.time, "perf_counter", lambda: seconds.pop(0))
    queue = window.Window(WindowRule(100, first_steps=5))
    assert queue._limit == 5
    for limit in (4.5, 100):
        queue._cost = 9
        queue.execute()
        assert queue._limit == limit


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


def test_groups_that_a_strategy_changes_later_are_those_of_their_round() -> None:
    """A strategy may keep one dict of weights and change it every round."""
    models = []
    for steps in (1, 10**6):
        server, weights = queued_server(steps), {"a": 0.5}
        for version, weight in enumerate((0.5, 0.1)):
            weights["a"] = weight
            merge = Merge(np.array([0]), np.array([1.0]), groups=GroupMemory(["a"], weights))
            server.merge(updates([version], [0], [1.0]), merge.weights, merge, version, round=version + 1)
        models.append(server.model(2).vector)
        server.close()
    assert torch.equal(*models)


def test_cohorts_of_different_trainers_are_not_trained_together() -> None:
    """One trainer takes the first and third aggregation, the other the second."""
    queue, trained, models = window.Window(WindowRule(10**6)), list[tuple[str, int]](), {0: torch.zeros(2)}

    class Trainer:
        def __init__(self, name: str) -> None:
            self.name = name

        def sums(self, cohorts: Sequence[Cohort]) -> list[torch.Tensor]:
            trained.append((self.name, len(cohorts)))
            return [torch.ones(2) for _ in cohorts]

    trainers = [Trainer("one step"), Trainer("several steps")]
    for number in range(3):
        merge, made = Merge(np.array([0]), np.array([1.0])), updates([number], [0], [1.0])
        planned = plan_cohorts(made, merge.weights, np.array([0.1]), merge)
        trainer: Any = trainers[number % 2]
        one = window.Aggregation(made, merge.weights, merge, number, number + 1, "models", planned, trainer)
        queue.add_aggregation(one, models, lambda one: queue.train(one, models))
    queue.execute()
    assert trained == [("one step", 2), ("several steps", 1)]


def test_sums_are_released_as_soon_as_they_are_aggregated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client starts from the version before, so that at most one sum exists at any time."""
    sums, made, alive = FusedTrainer.sums, list[weakref.ref[torch.Tensor]](), list[int]()

    def recorded(self: FusedTrainer, cohorts: Sequence[Cohort]) -> list[torch.Tensor]:
        alive.append(sum(one() is not None for one in made))
        totals = sums(self, cohorts)
        made.extend(map(weakref.ref, totals))
        return totals

    monkeypatch.setattr(FusedTrainer, "sums", recorded)
    server = queued_server()
    for version in range(20):
        merge_of_one(server, 0, version, version)
        server.forget(version)
    server.flush()
    assert alive == [0] * 20
    server.close()


def test_a_failed_window_is_reported_again_when_a_model_is_read() -> None:
    server = queued_server(learning_rate=1e42, lr_cap=np.inf)
    for version in range(4):
        merge_of_one(server, 0, version, version)
    with pytest.raises(DivergedError) as first:
        server.flush()
    with pytest.raises(DivergedError) as again:
        server.model(4)
    assert again.value is first.value
    assert server.first_open_round < 4
    server.close()


def test_nothing_waits_for_remote_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.learn.simulated_clients.SimulatedClients.may_wait", False)
    server = queued_server()
    merge_of_one(server, 0, 0, 0)
    assert list(server.versions) == [0, 1]
    server.close()


def test_lines_do_not_wait_longer_than_the_largest_number_of_rounds(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(10**6)
    monkeypatch.setattr("lesson.runs.execute.MAX_WINDOW_ROUNDS", 7)
    made, told = list[TrainingRun](), list[tuple[int, int]]()

    def make(*given: Any, **parts: Any) -> TrainingRun:
        made.append(build(*given, **parts))
        return made[-1]

    def tell(line: dict[str, Any]) -> None:
        told.append((line["round"], made[0].loop.round))

    execute(settings("fedasync", eval_every_s=1e6), tmp_path / "run", make=make, progress=tell, **PARTS)
    assert told == [(line, min(30, -(-line // 7) * 7)) for line in range(1, 31)]


def test_a_run_that_ends_after_ctrl_c_but_before_its_window_can_be_resumed(tmp_path: Path, rule: Any) -> None:
    rule(10**6, ends_anywhere=False)
    execute(settings("fedasync"), tmp_path / "whole", **PARTS)

    def make(*given: Any, **parts: Any) -> TrainingRun:
        run = build(*given, **parts)
        step = run.loop.step

        def interrupted(*until: float) -> Any:
            if run.loop.round == 8:
                os.kill(os.getpid(), signal.SIGINT)
            return step(*until)

        run.loop.step = interrupted  # type: ignore[method-assign]
        return run

    with pytest.raises(KeyboardInterrupt):
        execute(settings("fedasync"), tmp_path / "broken", make=make, **PARTS)
    assert RunFolder(tmp_path / "broken").checkpoint.exists()
    execute(settings("fedasync"), tmp_path / "broken", resume=True, **PARTS)
    assert content(tmp_path / "broken") == content(tmp_path / "whole")


def test_nothing_waits_if_updates_can_be_rejected() -> None:
    """A rejection changes weights and who starts next, so it must be known in its round."""
    server = queued_server(guards={"norm": "reject"})
    merge_of_one(server, 0, 0, 0)
    assert list(server.versions) == [0, 1]
    server.close()


def test_an_evaluation_waits_for_its_model(rule: Any) -> None:
    rule(10**6)
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


def same_failure(chosen: Settings, folder: Path, rule: Any, kind: type[Exception] = DivergedError) -> list[str]:
    """Return the lines of a run that fails; fail if they or the message depend on the window."""
    found = []
    for steps in (1, 10**6):
        rule(steps)
        with pytest.raises(kind) as caught:
            execute(chosen, folder / str(steps), **PARTS)
        found.append((str(caught.value), (folder / str(steps) / "metrics.jsonl").read_text()))
    assert found[0] == found[1]
    return found[0][1].splitlines()


def test_a_run_that_diverges_stops_as_it_would_round_by_round(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder has the same lines, with evaluations, up to the round before, and the message is the same."""
    overflow_from(8, monkeypatch)
    lines = same_failure(settings("lesson", eval_every_s=20.0), tmp_path, rule)
    assert 7 <= len(lines) < 30
    assert all("accuracy" in line for line in lines)


class Failing(FedAsync):
    """A strategy with a mistake that shows in round 20."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        if view.round == 20:
            raise InputError("round 20 is not supported")
        return super().open_round(view, rng)


def test_a_strategy_that_fails_leaves_the_lines_before_it(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lesson.learn.build.strategy_of", lambda _: Failing())
    assert len(same_failure(settings("fedasync"), tmp_path, rule, InputError)) == 19


def test_a_loss_that_is_not_finite_stops_a_run_as_it_would_round_by_round(
    tmp_path: Path, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third evaluation on the clients' samples fails; lines up to the round before it are written."""
    by_client, number = Evaluator.client_scores, 0

    def failing(self: Evaluator, model: GlobalModel) -> ClientScores:
        nonlocal number
        number += 1
        check_finite("loss", number % 3 != 0, model.newest_cohort)
        return by_client(self, model)

    monkeypatch.setattr(Evaluator, "client_scores", failing)
    assert len(same_failure(settings(client_scores_every_s=100.0), tmp_path, rule)) == 14  # rounds of 20 s


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
