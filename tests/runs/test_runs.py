"""Run folders: their content, which ones are reused or rejected, and resuming bit-identically."""

import json
import math
import os
import signal
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from helpers.resuming import StoppedError, check_resumes, stop_after
from helpers.runs import PARTS, content, settings
from helpers.small_tasks import tiny_data
from lesson import InputError
from lesson.clock.worlds import NominalWorld
from lesson.core.errors import DivergedError
from lesson.learn.backend import ChunkRule
from lesson.learn.cpu import CpuBackend
from lesson.learn.results import RoundResult
from lesson.learn.scores import ClientScores
from lesson.runs.evaluation_times import EvaluationGrid
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder
from lesson.runs.metrics import result_fields
from lesson.runs.resolve import resolve
from lesson.runs.summary import accuracy_by_tier, read_metrics
from lesson.settings.loading import load_settings
from lesson.settings.settings import Settings

OFTEN = {"checkpoint_every_s": 1e-9}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, not to be changed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    path.mkdir()
    (path / ".config.toml.aside").write_text("[fle")  # as a killed process may leave it
    execute(settings(), path, **PARTS)
    return path


def interrupted(path: Path) -> RunFolder:
    with pytest.raises(StoppedError):
        execute(settings(**OFTEN), path, progress=stop_after(5), **PARTS)
    return RunFolder(path)


def test_folder_of_a_finished_run(finished: Path) -> None:
    names = sorted(path.name for path in finished.iterdir())
    assert names == ["clients.json", "config.toml", "metrics.jsonl", "model.safetensors", "summary.json"]
    config = tomllib.loads((finished / "config.toml").read_text())
    assert config["fleet"]["num_clients"] == 6
    assert config["versions"]["numpy"] == np.__version__
    assert (config["run"]["device"], config["run"]["precision"]) == ("cpu", "float32")
    lines, summary = read_metrics(finished / "metrics.jsonl"), json.loads((finished / "summary.json").read_text())
    assert [line["round"] for line in lines] == list(range(1, 31))
    # Rounds of 20 s, evaluated every 100 s: after every fifth round.
    assert [line["round"] for line in lines if "accuracy" in line] == [5, 10, 15, 20, 25, 30]
    latency_s = json.loads((finished / "clients.json").read_text())["clients"]["latency_s"]
    for line in lines:
        parts = zip(*(line[name] for name in ("merged", "merged_started_s", "merged_arrived_s")), strict=True)
        for client, started_s, arrived_s in parts:
            assert arrived_s - started_s == pytest.approx(latency_s[client], abs=2e-3)
    for name in ("uploads", "bytes_up", "bytes_down", "energy_j"):
        assert summary[name] == pytest.approx(sum(line[name] for line in lines))
    assert (summary["rounds"], summary["time_s"], summary["accuracy"]) == (30, 600.0, lines[-1]["accuracy"])
    model = safetensors.numpy.load_file(finished / "model.safetensors")
    assert model.keys() == {"conv.weight", "conv.bias", "out.weight", "out.bias"}
    assert model["out.weight"].shape == (3, 32)


def test_clients_are_recorded(finished: Path) -> None:
    saved = json.loads((finished / "clients.json").read_text())
    run = resolve(settings(), PARTS["task"]).build(1)
    fleet, holdings, columns = run.pipeline.loop.fleet, run.evaluator.workload.holdings, saved["clients"]
    assert saved["num_clients"] == len(fleet) == 6
    assert columns["latency_s"] == fleet.latency_s.tolist()
    assert columns["x_km"] == fleet.population.x_km.tolist()
    assert columns["num_samples"] == holdings.num_samples.tolist()
    assert columns["distance_km"] == fleet.population.distance_km.tolist()
    rates = np.array(columns["upload_bits"]) / columns["upload_s"]
    assert columns["rate_bps"] == pytest.approx(30e3 * np.log2(1 + 10 ** (np.array(columns["snr_db"]) / 10)))
    assert columns["rate_bps"] == pytest.approx(rates)
    # A client's accuracy weights the accuracy on each class by the class's share of its data.
    labels = tiny_data().train_targets[holdings[3]]
    assert columns["accuracy"][3] == pytest.approx(np.mean([saved["class_accuracy"][label] for label in labels]))
    by_class = np.bincount(tiny_data().test_targets) / len(tiny_data().test_targets)
    summary = json.loads((finished / "summary.json").read_text())
    assert by_class @ saved["class_accuracy"] == pytest.approx(summary["accuracy"])
    run.pipeline.close()


def test_moving_clients_are_recorded_as_they_start(tmp_path: Path) -> None:
    clients = {}
    for name, strategy, speed_mps in (("still", "lesson", 0.0), ("moving", "lesson", 50.0), ("other", "fedavg", 50.0)):
        execute(settings(strategy, rounds=8).with_changes(speed_mps=(speed_mps,) * 2), tmp_path / name, **PARTS)
        clients[name] = json.loads((tmp_path / name / "clients.json").read_text())["clients"]
    for column in ("x_km", "y_km", "compute_s", "upload_s", "latency_s"):
        assert clients["moving"][column] == clients["other"][column] == clients["still"][column]


def test_only_strategies_with_a_deadline_count_late_updates(tmp_path: Path) -> None:
    lesson, fedbuff = (
        execute(settings(name).with_changes(slowdown=1.0), tmp_path / name, **PARTS) for name in ("lesson", "fedbuff")
    )
    assert lesson["misses"] > 0
    assert "misses" not in fedbuff
    assert {"retiered", "lost"} <= lesson.keys() & fedbuff.keys()


def test_large_fleets_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.runs.execute.MAX_NAMED", 5)
    monkeypatch.setattr("lesson.runs.summary.MAX_CLIENTS", 3)
    execute(settings(rounds=3), tmp_path / "run", **PARTS)
    saved = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert (saved["num_clients"], saved["clients"]["number"]) == (6, [1, 2, 4])  # the fastest, one between, the slowest
    assert "merged" not in read_metrics(tmp_path / "run" / "metrics.jsonl")[0]


def test_results_depend_on_the_seed_alone(tmp_path: Path, finished: Path) -> None:
    execute(settings(), tmp_path / "same", **PARTS | {"num_threads": 3})
    execute(settings(seed=1), tmp_path / "other", **PARTS)
    assert content(tmp_path / "same") == content(finished)
    assert content(tmp_path / "other")["metrics.jsonl"] != content(finished)["metrics.jsonl"]


STATES: dict[str, tuple[Settings, int]] = {
    "updates in flight": (settings(**OFTEN), 16),
    "server optimizer": (settings(**OFTEN).with_changes(optimizer="adam", **{"server.learning_rate": 0.01}), 2),
    "fitted work": (settings("lesson-fitted", **OFTEN), 5),
    # Six clients fill a buffer in rounds 6, 12, …: two updates are in the third.
    "cached updates": (settings("ca2fl", **OFTEN), 14),
    "optimizer of the strategy": (settings("fadas", **OFTEN), 14),
    "client scores": (settings(client_scores_every_s=60.0, **OFTEN), 3),
}


@pytest.mark.parametrize("state", STATES)
def test_interrupted_runs_resume_bit_identically(tmp_path: Path, state: str) -> None:
    chosen, after_round = STATES[state]
    check_resumes(chosen, tmp_path, after_round, **PARTS)


@pytest.mark.parametrize(("last", "rule"), [(12, ChunkRule()), (30, ChunkRule(10**6))])
def test_ctrl_c_saves_a_checkpoint(
    tmp_path: Path, finished: Path, last: int, rule: ChunkRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two rounds, and at the last moment."""

    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == last:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(CpuBackend, "rule", rule)
    with pytest.raises(KeyboardInterrupt):
        execute(settings(), tmp_path / "run", progress=interrupt, **PARTS)
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == last
    assert RunFolder(tmp_path / "run").checkpoint.exists()
    execute(settings(), tmp_path / "run", resume=True, **PARTS)
    assert content(tmp_path / "run") == content(finished)


def test_run_that_diverges_keeps_the_rounds_before(tmp_path: Path) -> None:
    wild = settings(rounds=10).with_changes(proximal_mu=1e30, local_steps=4, trainer="reference")
    with pytest.raises(DivergedError, match="proximal_mu"):
        execute(wild, tmp_path / "run", **PARTS)
    rounds = [line["round"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert rounds == list(range(1, len(rounds) + 1))


def test_default_options_are_recorded_but_not_read_back(tmp_path: Path) -> None:
    execute(settings("fedbuff", rounds=2).with_strategy("fedbuff", {"buffer_size": 2}), tmp_path / "run", **PARTS)
    config = tmp_path / "run" / "config.toml"
    defaults = tomllib.loads(config.read_text())["strategy_defaults"]
    starts = {"concurrency": "unset", "rate_per_s": "unset", "start_times": "constant"}
    assert defaults == {**starts, "scale_staleness": True, "server_lr": 1.0}
    assert load_settings(config).strategy.options == {"buffer_size": 2}


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin(resolve(settings(rounds=2), PARTS["task"]).settings, {})
    with folder.owned(), pytest.raises(InputError, match="in use"):
        execute(settings(rounds=2), tmp_path / "run", resume=True, **PARTS)
    execute(settings(rounds=2), tmp_path / "run", resume=True, **PARTS)


def test_rejected_folders(tmp_path: Path) -> None:
    folder = interrupted(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for chosen, path, resume, why in (
        (settings(seed=1), folder.path, True, r"other settings \(.*\); undo the change, or choose another"),
        (settings(), folder.path, False, "unfinished"),
        (settings(), tmp_path / "mine", False, "holds no run"),
        (settings(), tmp_path / "file", False, "is a file"),
    ):
        with pytest.raises(InputError, match=why):
            execute(chosen, path, resume=resume, **PARTS)
    folder.metrics.write_bytes(folder.metrics.read_bytes()[:10])
    with pytest.raises(InputError, match=r"metrics.jsonl lacks lines"):
        execute(settings(), folder.path, resume=True, **PARTS)


def test_finished_runs_are_reused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = execute(settings(rounds=2), tmp_path / "run", **PARTS)
    before, folder = content(tmp_path / "run"), RunFolder(tmp_path / "run")
    folder.checkpoint.touch()  # as if killed before it was deleted
    capsys.readouterr()
    assert execute(settings(rounds=2), tmp_path / "run", **PARTS) == first
    assert "reusing" in capsys.readouterr().err
    assert content(tmp_path / "run") == before
    assert not folder.checkpoint.exists()


def test_rejected_runs_leave_no_files(tmp_path: Path) -> None:
    wrong = settings("fedbuff").with_strategy("fedbuff", {"concurrency": 20})  # of 6 clients
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".mine").touch()
    for name in ("run", "kept"):
        with pytest.raises(InputError, match="concurrency"):
            execute(wrong, tmp_path / name, **PARTS)
    assert not (tmp_path / "run").exists()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [".mine"]


def test_note_if_a_run_stops_aggregating(tmp_path: Path) -> None:
    """Both clients take 30 s once, in round 2. FedCS then expects them to miss every deadline of 20 s."""
    rows = [f"{client},{round},{30 if round == 2 else 10},1\n" for client in range(2) for round in range(1, 9)]
    (tmp_path / "work.csv").write_text("client,round,compute_s,upload_s\n" + "".join(rows))
    trace = {"trace": str(tmp_path / "work.csv"), "num_clients": 2, "deadline_s": 20.0}
    fedcs = settings("fedcs", rounds=8).with_changes(**trace)
    assert "refresh_estimates_every_s" in execute(fedcs, tmp_path / "stopped", **PARTS)["notes"][0]
    asked = fedcs.with_changes(refresh_estimates_every_s=20.0)
    assert execute(asked, tmp_path / "asked", **PARTS)["notes"] == []


@pytest.mark.parametrize(
    ("run", "changes", "said"),
    [
        ({"rounds": None, "time_budget_s": 30.0}, {"power_w": 1e-9, "ensure_first_tier": False}, "no update arrived"),
        ({"rounds": 3}, {"strategy.name": "fedbuff", "strategy.buffer_size": 5}, "no update was aggregated"),
        ({"rounds": 10}, {"training.learning_rate": 1e6, "lr_cap": math.inf}, "guessing among 3 classes"),
    ],
)
def test_note_if_a_run_learns_nothing(tmp_path: Path, run: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    assert said in execute(settings(**run).with_changes(**changes), tmp_path / "run", **PARTS)["notes"][0]


def test_resuming_with_other_versions_prints_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = interrupted(tmp_path / "run")
    here = f'cpu_capability = "{torch.backends.cpu.get_cpu_capability()}"'
    config = folder.config.read_text()
    assert here in config
    folder.config.write_text(config.replace(here, 'cpu_capability = "Z80"'))
    with pytest.raises(StoppedError):
        execute(settings(**OFTEN), folder.path, resume=True, progress=stop_after(7), **PARTS)
    assert "cpu_capability Z80" in capsys.readouterr().err
    folder.config.write_text(config)
    execute(settings(), folder.path, resume=True, **PARTS)
    assert capsys.readouterr().err == ""


def test_time_budget_is_not_exceeded(tmp_path: Path) -> None:
    summary = execute(settings(rounds=None, time_budget_s=70.0), tmp_path / "run", **PARTS)
    assert (summary["rounds"], summary["time_s"]) == (3, 60.0)


CURVES = {
    "lesson": [1.089711, 0.898031, 0.579668, 0.430259, 0.351016, 0.291035],
    "fedavg": [1.114972, 1.040187, 0.852884, 0.673559, 0.533179, 0.458565],
    "fedcs": [1.073532, 0.82123, 0.545258, 0.415369, 0.346569, 0.291659],
}


@pytest.mark.parametrize("strategy", CURVES)
def test_losses_of_short_runs(tmp_path: Path, strategy: str) -> None:
    execute(settings(strategy, rounds=60), tmp_path / "run", **PARTS)
    losses = [line["loss"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if "loss" in line]
    assert losses[:12:2] == pytest.approx(CURVES[strategy], rel=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
def test_run_resumes_only_on_its_device(tmp_path: Path) -> None:
    auto = settings(device="auto", rounds=2)
    execute(auto, tmp_path / "run", **PARTS)
    folder = RunFolder(tmp_path / "run")
    for change in ({"device": "cuda"}, {"precision": "bfloat16"}):
        with pytest.raises(InputError, match="other settings"):
            execute(settings(rounds=2, **change), folder.path, resume=True, **PARTS)
    folder.config.write_text(folder.config.read_text().replace('"cpu"', '"cuda"').replace('"float32"', '"tf32"'))
    assert execute(auto, folder.path, **PARTS)["rounds"] == 2, "it can be read anywhere"
    folder.summary.unlink()
    with pytest.raises(InputError, match="started on a GPU"):
        execute(auto, folder.path, resume=True, **PARTS)


def test_client_scores_are_those_of_the_newest_model(tmp_path: Path, finished: Path) -> None:
    """Rounds of 20 s: after every third, and in round 15 together with a test score."""
    scored = settings(client_scores_every_s=60.0)
    execute(scored, tmp_path / "run", **PARTS)
    lines = [line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if "client_loss" in line]
    assert [line["round"] for line in lines] == list(range(3, 31, 3))
    run = resolve(scored, PARTS["task"]).build(1)
    for line in lines:
        while run.pipeline.loop.round < line["round"]:
            run.pipeline.step()
        run.pipeline.drain()
        expected = run.evaluator.client_scores(run.pipeline.lane.model)
        assert line["client_accuracy"] == expected.accuracy.tolist()
        assert line["client_loss"] == expected.loss.tolist()
    run.pipeline.close()
    before, after = content(finished), content(tmp_path / "run")
    assert {name for name in before if before[name] != after[name]} == {"metrics.jsonl"}


def test_client_without_samples_has_no_score() -> None:
    scores = ClientScores(np.array([0.5, np.nan]), np.array([1.25, np.nan]), 1.25)
    fields = result_fields(RoundResult(clients=scores), has_classes=True)
    assert fields == {"global_loss": 1.25, "client_accuracy": [0.5, None], "client_loss": [1.25, None]}


class FakeRecord:
    """The part of a round's record that decides whether it is evaluated."""

    def __init__(self, round: int, end_s: float) -> None:
        self.round, self.end_s = round, end_s


def evaluated(count: int, round_s: float, *, first: int = 1, of_clients: bool = False, **run: Any) -> list[int]:
    """Return those of `count` rounds of equal length after which a run is evaluated."""
    grid = EvaluationGrid(settings(**{"rounds": None} | run).run)
    return [
        number
        for number in range(first, count + 1)
        if grid.due(round_s * (number - 1), FakeRecord(number, round_s * number))[of_clients]  # type: ignore[arg-type]
    ]


def test_evaluations_at_forty_random_times() -> None:
    """1,000 rounds of 10 s, 25 in each fortieth: one evaluation in each of them, after odd and even rounds alike."""
    auto = {"eval_every_s": "auto", "time_budget_s": 10_000.0}
    first, other = (evaluated(1000, 10.0, seed=seed, **auto) for seed in (0, 1))
    assert [(number - 1) // 25 for number in first] == list(range(40))
    assert first != other
    assert 10 <= sum(number % 2 for number in first) <= 30
    assert evaluated(500, 20.0, **auto) == [math.ceil(number / 2) for number in first], "times, not rounds, are drawn"
    assert evaluated(8, 1000.0, **auto) == list(range(1, 9)), "rounds longer than a fortieth are all evaluated"
    by_rounds = evaluated(400, 7.0, eval_every_s="auto", rounds=400)
    assert [(number - 1) // 10 for number in by_rounds] == list(range(40))


@pytest.mark.parametrize("of_clients", [False, True])
def test_jitter_moves_evaluations_within_their_interval(of_clients: bool) -> None:
    """Intervals of 200 s are 20 rounds of 10 s: without jitter, evaluation k follows round 20 k."""
    fixed = {"eval_every_s": 200.0, "client_scores_every_s": 200.0, "rounds": 1000, "of_clients": of_clients}
    assert evaluated(1000, 10.0, **fixed) == list(range(20, 1001, 20))
    whole, other = (evaluated(1000, 10.0, eval_jitter=1.0, seed=seed, **fixed) for seed in (0, 1))
    assert whole != other
    assert [(number - 1) // 20 for number in whole] == list(range(50))
    assert 15 <= sum(number % 2 for number in whole) <= 35, "after odd and even rounds alike"
    half = evaluated(1000, 10.0, eval_jitter=0.5, **fixed)
    assert [(number - 1) // 20 for number in half] == list(range(50))
    assert min((number - 1) % 20 for number in half) >= 9, "by at most half an interval"
    resumed = evaluated(1000, 10.0, first=501, eval_jitter=1.0, **fixed)
    assert resumed == [number for number in whole if number > 500]


@pytest.mark.parametrize("stop", [3, 4])
def test_evaluation_between_two_rounds_follows_the_second(
    tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of 20 s end at 20, 50, 80, 110, … s. Of the multiples of 85 s, the first lies between rounds 3 and 4, the
    second is the end of round 6, and the third, 255 s, lies in round 9, from 240 s to 260 s."""
    # 10 s pass between two rounds, as on the wall clock during an evaluation.
    monkeypatch.setattr(NominalWorld, "open", lambda *args: args[3] + (10.0 if args[2] > 1 else 0.0))
    short = settings("fedcs", rounds=10, eval_every_s=85.0, client_scores_every_s=85.0, **OFTEN)
    check_resumes(short, tmp_path, stop, **PARTS)
    lines = read_metrics(tmp_path / "broken" / "metrics.jsonl")
    assert [line["time_s"] for line in lines][:4] == [20.0, 50.0, 80.0, 110.0]
    for name in ("accuracy", "client_accuracy"):
        assert [line["round"] for line in lines if name in line] == [4, 6, 9]


def test_accuracy_by_tier() -> None:
    """Clients in tier 1 at 10 s: 0.9 and 0.7; others: 0.5, one without classes of its own, and one out of reach."""
    columns = {"accuracy": [0.9, 0.7, 0.5, None, 0.1], "latency_s": [5.0, 10.0, 10.1, 20.0, None]}
    assert accuracy_by_tier({"clients": columns}, 10.0) == {"accuracy_by_tier": [0.8, 0.3]}
    assert accuracy_by_tier({"clients": columns}, 4.0) == {}
    assert accuracy_by_tier({"clients": {"latency_s": [1.0]}}, 10.0) == {}
