"""Run folders: what is in them, and that a killed run resumes bit-identically."""

import json
import math
import os
import re
import signal
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from helpers.resuming import StoppedError, check_resumes
from helpers.runs import PARTS, content, settings
from helpers.small_tasks import tiny_data
from lesson import InputError
from lesson.clock.worlds import NominalWorld
from lesson.core.errors import DivergedError
from lesson.core.random import stream
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.learn.build import build
from lesson.learn.cpu import CpuBackend
from lesson.learn.device import on_device
from lesson.learn.scores import ClientScores, PendingScore, Score
from lesson.report.study.compare_text import cell, surprises
from lesson.runs.execute import EvaluationGrid, client_fields, execute
from lesson.runs.folder import RunFolder
from lesson.runs.summary import num_last, read_metrics
from lesson.settings.loading import load_settings
from lesson.settings.sections import ServerSettings
from lesson.settings.settings import Settings


def test_a_folder_holds_the_contract(tmp_path: Path) -> None:
    summary = execute(settings(), tmp_path / "run", **PARTS)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["clients.json", "config.toml", "metrics.jsonl", "model.safetensors", "summary.json"]
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["fleet"]["num_clients"] == 6
    assert config["versions"]["numpy"] == np.__version__
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 31))
    fields = {"round", "time_s", "uploads", "bytes_up", "bytes_down", "energy_j", "staleness"}
    fields |= {"merged", "merged_staleness", "merged_started_s", "merged_arrived_s"}
    assert all(fields <= set(line) for line in lines)
    assert 0 < sum(len(line["merged"]) for line in lines) <= summary["uploads"]
    latency_s = json.loads((tmp_path / "run" / "clients.json").read_text())["clients"]["latency_s"]
    for line in lines:
        parts = zip(*(line[name] for name in ("merged", "merged_started_s", "merged_arrived_s")), strict=True)
        for client, started_s, arrived_s in parts:
            assert arrived_s - started_s == pytest.approx(latency_s[client], abs=2e-3)
    # Rounds of 20 s, looked at every 100 s: after every fifth round.
    assert [line["round"] for line in lines if "accuracy" in line] == [5, 10, 15, 20, 25, 30]
    fields = {"strategy", "dataset", "rounds", "time_s", "accuracy", "accuracy_last10", "uploads", "bytes_up", "wall_s"}
    assert fields <= set(summary)
    assert summary["uploads"] == sum(line["uploads"] for line in lines)
    assert summary["accuracy"] == lines[-1]["accuracy"]
    model = safetensors.numpy.load_file(tmp_path / "run" / "model.safetensors")
    assert {name: array.shape for name, array in model.items()} == {
        "conv.weight": (2, 1, 3, 3),
        "conv.bias": (2,),
        "out.weight": (3, 32),
        "out.bias": (3,),
    }


def test_participating_clients_are_recorded(tmp_path: Path) -> None:
    chosen = settings()
    execute(chosen, tmp_path / "run", **PARTS)
    kept = json.loads((tmp_path / "run" / "clients.json").read_text())
    run = build(chosen, **PARTS)
    fleet, holdings, columns = run.loop.fleet, run.evaluator.workload.holdings, kept["clients"]
    assert kept["num_clients"] == len(fleet) == 6
    assert columns["latency_s"] == fleet.latency_s.tolist()
    assert columns["x_km"] == fleet.population.x_km.tolist()
    assert columns["num_samples"] == holdings.num_samples.tolist()
    # What a client may expect: the accuracy on each class, by how much of its data is of that class.
    labels = tiny_data().train_labels[holdings[3]]
    expected = np.mean([kept["class_accuracy"][label] for label in labels])
    assert columns["accuracy"][3] == pytest.approx(expected)
    by_class = np.bincount(tiny_data().test_labels) / len(tiny_data().test_labels)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert by_class @ kept["class_accuracy"] == pytest.approx(summary["accuracy"])
    run.close()


def test_clients_that_move_are_recorded_as_they_are_at_the_start(tmp_path: Path) -> None:
    """Positions, times and tiers are those of clients that do not move, whatever a strategy measured later."""
    kept = {}
    for name, strategy, speed_mps in (("still", "lesson", 0.0), ("moving", "lesson", 50.0), ("other", "fedavg", 50.0)):
        chosen = settings(strategy).with_changes(speed_mps=(speed_mps, speed_mps))
        execute(chosen, tmp_path / name, **PARTS)
        kept[name] = json.loads((tmp_path / name / "clients.json").read_text())["clients"]
    for column in ("x_km", "y_km", "compute_s", "upload_s", "latency_s"):
        assert kept["moving"][column] == kept["other"][column] == kept["still"][column]


def test_only_strategies_with_a_deadline_have_late_updates(tmp_path: Path) -> None:
    summaries = [
        execute(settings(strategy).with_changes(slowdown=1.0), tmp_path / strategy, **PARTS)
        for strategy in ("lesson", "fedbuff")
    ]
    assert summaries[0]["misses"] > 0
    assert "misses" not in summaries[1]
    assert all({"retiered", "lost"} <= summary.keys() for summary in summaries)
    table = Study([Run.load(tmp_path / strategy) for strategy in ("lesson", "fedbuff")]).means()
    assert cell(table.loc["fedbuff"], "misses", 1, 0) == "–"
    assert "late updates" in surprises(table)


def test_large_fleets_are_sampled_and_rounds_name_no_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.runs.execute.MAX_NAMED", 5)
    monkeypatch.setattr("lesson.runs.summary.MAX_CLIENTS", 3)
    execute(settings(), tmp_path / "run", **PARTS)
    kept = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert (kept["num_clients"], kept["clients"]["number"]) == (6, [1, 2, 4])  # the fastest, one between, the slowest
    assert "merged" not in read_metrics(tmp_path / "run" / "metrics.jsonl")[0]


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    execute(settings(), tmp_path / "first", **PARTS)
    execute(settings(), tmp_path / "second", **PARTS | {"num_threads": 3})
    execute(settings(seed=1), tmp_path / "other", **PARTS)
    assert content(tmp_path / "first") == content(tmp_path / "second")
    assert content(tmp_path / "first")["metrics.jsonl"] != content(tmp_path / "other")["metrics.jsonl"]


@pytest.mark.parametrize("stop", [1, 16])
def test_a_run_resumes_from_any_round_bit_identically(tmp_path: Path, stop: int) -> None:
    """A checkpoint after every round; the run breaks off after `stop` rounds, with versions in flight."""
    check_resumes(settings(checkpoint_every_s=1e-9), tmp_path, stop, **PARTS)


@pytest.mark.parametrize("strategy", ["ca2fl", "fadas"])
def test_cached_updates_and_an_optimizer_of_the_strategy_resume_bit_identically(tmp_path: Path, strategy: str) -> None:
    """Six clients fill the buffer in rounds 6, 12, …; the run breaks off with two updates in the third."""
    check_resumes(settings(strategy, checkpoint_every_s=1e-9), tmp_path, 14, **PARTS)
    notes = json.loads((tmp_path / "broken" / "summary.json").read_text())["notes"]
    assert notes == (["server optimizer: amsgrad, as FADAS prescribes"] if strategy == "fadas" else [])


@pytest.mark.parametrize("strategy", ["lesson-adaptive", "lesson-filled"])
def test_an_adaptive_deadline_and_filled_slots_resume_bit_identically(
    tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look every 5 rounds, one of which has changed the deadline before each break."""
    monkeypatch.setattr("lesson.strategies.extensions.lesson_adaptive.LOOK_ROUNDS", 5)
    chosen = settings(strategy, checkpoint_every_s=1e-9)
    execute(chosen, tmp_path / "whole", **PARTS)
    changed = [
        line["round"] for line in read_metrics(tmp_path / "whole" / "metrics.jsonl") if "→" in line.get("note", "")
    ]
    assert bool(changed) == (strategy == "lesson-adaptive")
    for last in (max([0, *changed[:1]]) + 2, 17):

        def break_off(line: dict[str, Any], last: int = last) -> None:
            if line["round"] == last:
                raise StoppedError

        with pytest.raises(StoppedError):
            execute(chosen, tmp_path / "broken", resume=(tmp_path / "broken").exists(), progress=break_off, **PARTS)
    execute(chosen, tmp_path / "broken", resume=True, **PARTS)
    assert content(tmp_path / "broken") == content(tmp_path / "whole")


def test_an_optimizer_and_a_memory_resume_bit_identically(tmp_path: Path) -> None:
    """Broken off twice, once before every tier has been merged."""
    plain = settings("lesson-memory", checkpoint_every_s=1e-9)
    server = ServerSettings(optimizer="adam", learning_rate=0.01, epsilon=1e-4)
    with_adam = plain.model_copy(update={"server": server})
    for folder, chosen in (("plain", plain), ("whole", with_adam)):
        execute(chosen, tmp_path / folder, **PARTS)
    assert content(tmp_path / "plain") != content(tmp_path / "whole")

    for last in (2, 17):

        def break_off(line: dict[str, Any], last: int = last) -> None:
            if line["round"] == last:
                raise StoppedError

        with pytest.raises(StoppedError):
            execute(with_adam, tmp_path / "broken", resume=last > 2, progress=break_off, **PARTS)
    execute(with_adam, tmp_path / "broken", resume=True, **PARTS)
    assert content(tmp_path / "broken") == content(tmp_path / "whole")
    config = tomllib.loads((tmp_path / "whole" / "config.toml").read_text())
    assert config["server"] == server.model_dump()
    with pytest.raises(InputError, match=r"server.optimizer = 'adam' there, 'none' here"):
        execute(plain, tmp_path / "whole", **PARTS)


def test_a_folder_without_a_server_section_resumes(tmp_path: Path) -> None:
    execute(settings(), tmp_path / "run", **PARTS)
    config = tmp_path / "run" / "config.toml"
    before = re.sub(r"\[server\]\n(.+\n)+\n", "", config.read_text())
    assert "[server]" in config.read_text()
    assert "[server]" not in before
    config.write_text(before)
    execute(settings(), tmp_path / "run", resume=True, **PARTS)


@pytest.mark.usefixtures("round_by_round")
def test_ctrl_c_keeps_where_the_run_stands(tmp_path: Path) -> None:
    execute(settings(), tmp_path / "whole", **PARTS)

    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == 12:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        execute(settings(), tmp_path / "broken", progress=interrupt, **PARTS)
    assert RunFolder(tmp_path / "broken").checkpoint.exists()
    assert len(RunFolder(tmp_path / "broken").metrics.read_text().splitlines()) == 12
    execute(settings(), tmp_path / "broken", resume=True, **PARTS)
    assert content(tmp_path / "broken") == content(tmp_path / "whole")


def test_ctrl_c_in_the_last_moment_is_not_lost(tmp_path: Path) -> None:
    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == 30:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        execute(settings(), tmp_path / "run", progress=interrupt, **PARTS)
    execute(settings(), tmp_path / "run", resume=True, **PARTS)


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.toml.aside").write_text("[scen")
    execute(settings(), tmp_path / "run", **PARTS)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["clients.json", "config.toml", "metrics.jsonl", "model.safetensors", "summary.json"]


def test_the_record_lists_the_defaults_of_options(tmp_path: Path) -> None:
    """They are not settings: old folders lack them, and another strategy would not have them."""
    fedbuff = settings("fedbuff").with_strategy("fedbuff", {"buffer_size": 2})
    execute(fedbuff, tmp_path / "run", **PARTS)
    config = tmp_path / "run" / "config.toml"
    recorded = tomllib.loads(config.read_text())
    assert recorded["strategy_defaults"] == {"concurrency": "unset", "scale_staleness": True, "server_lr": 1.0}
    assert load_settings(config).strategy.options == {"buffer_size": 2}
    before, _, rest = config.read_text().partition("[strategy_defaults]")
    config.write_text(before + "[versions]" + rest.partition("[versions]")[2])  # as in earlier versions
    assert execute(fedbuff, tmp_path / "run", **PARTS)["rounds"] == 30


def test_two_processes_do_not_write_one_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin(on_device(settings()), {})
    with folder.owned(), pytest.raises(InputError, match="is in use by another process"):
        execute(settings(), tmp_path / "run", resume=True, **PARTS)
    execute(settings(), tmp_path / "run", resume=True, **PARTS)


def stop_after_five_rounds(line: dict[str, Any]) -> None:
    if line["round"] == 5:
        raise StoppedError


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_lost_metrics_are_noticed(tmp_path: Path, damage: str) -> None:
    with pytest.raises(StoppedError):
        execute(settings(checkpoint_every_s=1e-9), tmp_path / "run", progress=stop_after_five_rounds, **PARTS)
    metrics = RunFolder(tmp_path / "run").metrics
    if damage == "gone":
        metrics.unlink()
    else:
        os.truncate(metrics, 10)
    with pytest.raises(InputError, match=r"metrics.jsonl lacks lines that the checkpoint counts"):
        execute(settings(), tmp_path / "run", resume=True, **PARTS)


NEWER = ("rejected", "rejected_by", "excluded", "ended_early", "wall_trainer")
"""What summaries of older versions do not have."""


def test_a_damaged_summary_is_named(tmp_path: Path) -> None:
    execute(settings(), tmp_path / "run", **PARTS)
    summary = RunFolder(tmp_path / "run").summary
    whole = summary.read_text()
    renamed = [whole.replace(f'"{name}"', f'"{name[:-1]}"') for name in json.loads(whole) if name not in NEWER]
    for damaged in (whole[:50], "[]", "[" * 100_000, *renamed, whole.replace('"0.5"', '"0.4"')):
        summary.write_text(damaged)
        with pytest.raises(InputError, match=r"summary.json is damaged .*; remove the folder and rerun"):
            execute(settings(), tmp_path / "run", **PARTS)


def test_reading_a_folder_deletes_no_checkpoint(tmp_path: Path) -> None:
    often = settings(checkpoint_every_s=1e-9)
    execute(often, tmp_path / "whole", **PARTS)
    with pytest.raises(StoppedError):
        execute(often, tmp_path / "run", progress=stop_after_five_rounds, **PARTS)
    folder = RunFolder(tmp_path / "run")
    checkpoints = [folder.checkpoint, folder.before]
    folder.summary.write_text("{}")
    for read in (folder.finished, lambda: Run.load(folder.path), lambda: execute(often, folder.path, **PARTS)):
        with pytest.raises(InputError, match=r"summary.json is damaged .*; remove it to resume from the checkpoint"):
            read()
        assert all(path.exists() for path in checkpoints)
    whole = RunFolder(tmp_path / "whole").summary.read_text()
    folder.summary.write_text(whole)
    Run.load(folder.path)
    assert all(path.exists() for path in checkpoints)
    folder.summary.unlink()
    execute(often, folder.path, resume=True, **PARTS)
    assert content(folder.path) == content(tmp_path / "whole")


def test_checkpoints_of_a_run_that_was_killed_as_it_ended_are_deleted_by_the_same_command(tmp_path: Path) -> None:
    execute(settings(), tmp_path / "run", **PARTS)
    folder = RunFolder(tmp_path / "run")
    folder.checkpoint.touch()
    folder.before.touch()
    execute(settings(), tmp_path / "run", **PARTS)
    assert not folder.checkpoint.exists()
    assert not folder.before.exists()


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = execute(settings(), tmp_path / "run", **PARTS)
    before = content(tmp_path / "run")
    assert execute(settings(), tmp_path / "run", **PARTS) == first
    assert content(tmp_path / "run") == before


def test_a_run_rejected_in_its_first_round_leaves_no_folder(tmp_path: Path) -> None:
    usual = settings("fedbuff")
    too_many = usual.strategy.model_copy(update={"options": {"concurrency": 20}})  # of 6 clients
    wrong = usual.model_copy(update={"strategy": too_many})
    with pytest.raises(InputError, match="concurrency must be <= 6"):
        execute(wrong, tmp_path / "run", **PARTS)
    assert not (tmp_path / "run").exists()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".mine").touch()
    with pytest.raises(InputError, match="concurrency must be <= 6"):
        execute(wrong, tmp_path / "kept", **PARTS)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [".mine"]


def test_a_folder_of_another_run_is_rejected(tmp_path: Path) -> None:
    execute(settings(), tmp_path / "run", **PARTS)
    with pytest.raises(InputError, match=r"holds a run with other settings .*; choose another output folder"):
        execute(settings(seed=1), tmp_path / "run", resume=True, **PARTS)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="is not empty and holds no run"):
        execute(settings(), tmp_path / "mine", **PARTS)


def test_an_unfinished_run_must_be_resumed_explicitly(tmp_path: Path) -> None:
    def break_off(line: dict[str, Any]) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        execute(settings(), tmp_path / "run", progress=break_off, **PARTS)
    with pytest.raises(InputError, match="holds an unfinished run; resume it"):
        execute(settings(), tmp_path / "run", **PARTS)


def test_a_run_that_stops_aggregating_says_so(tmp_path: Path) -> None:
    """Both clients take 30 s once, in round 2. FedCS then expects them to miss every deadline of 20 s."""
    trace = tmp_path / "work.csv"
    rows = [f"{client},{round},{30 if round == 2 else 10},1\n" for client in range(2) for round in range(1, 9)]
    trace.write_text("client,round,compute_s,upload_s\n" + "".join(rows))
    fedcs = settings("fedcs", rounds=8).with_changes(trace=str(trace), num_clients=2, deadline_s=20.0)
    summary = execute(fedcs, tmp_path / "stopped", **PARTS)
    assert "aggregated no update after 20 s" in summary["notes"][0]
    assert "refresh_estimates_every_s" in summary["notes"][0]
    asked = fedcs.with_changes(refresh_estimates_every_s=20.0)
    assert execute(asked, tmp_path / "asked", **PARTS)["notes"] == []


@pytest.mark.parametrize("time_budget_s", [30.0, 10.0])
def test_a_run_without_arrivals_says_so(tmp_path: Path, time_budget_s: float) -> None:
    """Rounds of 20 s and slow radio: nobody is there at 20 s, and none ends within 10 s."""
    slow = settings(rounds=None, time_budget_s=time_budget_s)
    far = slow.with_changes(power_w=1e-9, ensure_first_tier=False)
    summary = execute(far, tmp_path / "run", **PARTS)
    assert (summary["uploads"], summary["notes"]) == (0, ["no update arrived, so the final model is the initial one"])


def test_a_run_that_aggregates_nothing_says_so(tmp_path: Path) -> None:
    """All uploads contain a NaN and are rejected."""
    summary = execute(settings(rounds=3).with_changes(nan=1.0), tmp_path / "run", **PARTS)
    assert summary["uploads"] == summary["rejected"] > 0
    assert summary["notes"][0] == "no update was aggregated, so the final model is the initial one"


def test_a_run_that_ends_far_worse_than_guessing_says_so(tmp_path: Path) -> None:
    wild = settings(rounds=10)
    training = wild.training.model_copy(update={"learning_rate": 1e6, "lr_cap": math.inf})
    summary = execute(wild.model_copy(update={"training": training}), tmp_path / "run", **PARTS)
    assert summary["loss"] > 100
    (note,) = summary["notes"]
    assert note.startswith(f"the final loss, {summary['loss']:.3g}, is far above 1.1, that of guessing among 3 classes")
    assert note.endswith("use a smaller learning_rate or lr_cap")
    assert execute(settings(rounds=10), tmp_path / "usual", **PARTS)["notes"] == []


@pytest.mark.parametrize(("section", "name"), [("training", "proximal_mu"), ("server", "epsilon")])
def test_numbers_that_training_cannot_compute_with_are_rejected(section: str, name: str) -> None:
    with pytest.raises(InputError, match=rf"^\[{section}\] {name} must be <= "):
        Settings(**{section: {name: 1e300}})


def test_a_run_that_diverges_by_its_proximal_term_names_it(tmp_path: Path) -> None:
    wild = settings(rounds=10)
    pulled = wild.with_changes(proximal_mu=1e30, local_steps=4, trainer="reference")
    with pytest.raises(DivergedError, match="use a smaller learning_rate, lr_cap or proximal_mu"):
        execute(pulled, tmp_path / "run", **PARTS)


def test_a_run_resumed_under_other_versions_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def break_off(line: dict[str, Any]) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        execute(settings(), tmp_path / "run", progress=break_off, **PARTS)
    config = tmp_path / "run" / "config.toml"
    here = tomllib.loads(config.read_text())["versions"]
    assert here["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    config.write_text(
        config.read_text().replace(f'cpu_capability = "{here["cpu_capability"]}"', 'cpu_capability = "Z80"')
    )
    with pytest.raises(StoppedError):
        execute(settings(), tmp_path / "run", resume=True, progress=break_off, **PARTS)
    assert capsys.readouterr().err == (
        f"note: {tmp_path / 'run'} was started with cpu_capability Z80 (here {here['cpu_capability']}); "
        "results may differ from those of an uninterrupted run in rounding\n"
    )
    hostile = "\\u001b[31m" + "Z" * 1000
    config.write_text(config.read_text().replace('cpu_capability = "Z80"', f'cpu_capability = "{hostile}"'))
    with pytest.raises(StoppedError):
        execute(settings(), tmp_path / "run", resume=True, progress=break_off, **PARTS)
    shown = f"\\x1b[31m{'Z' * 31}…"  # 40 characters
    assert f"was started with cpu_capability {shown} (here " in capsys.readouterr().err
    config.write_text(
        config.read_text().replace(f'cpu_capability = "{hostile}"\n', "")
    )  # written by an earlier release
    execute(settings(), tmp_path / "run", resume=True, **PARTS)
    assert capsys.readouterr().err == ""


def test_a_time_budget_ends_before_it_is_passed(tmp_path: Path) -> None:
    summary = execute(settings(rounds=None, time_budget_s=70.0), tmp_path / "run", **PARTS)
    assert (summary["rounds"], summary["time_s"]) == (3, 60.0)


GOLDEN = {
    "lesson": [1.089711, 0.898031, 0.579668, 0.430259, 0.351016, 0.291035],
    "fedavg": [1.114972, 1.040187, 0.852884, 0.673559, 0.533179, 0.458565],
    "fedcs": [1.073532, 0.82123, 0.545258, 0.415369, 0.346569, 0.291659],
}


@pytest.mark.parametrize("strategy", sorted(GOLDEN))
def test_short_curves_are_unchanged(tmp_path: Path, strategy: str) -> None:
    """Losses every 100 s over 60 rounds; a change to the numerics shows here, the rounding of another CPU does not."""
    execute(settings(strategy, rounds=60), tmp_path / "run", **PARTS)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[:12:2] == pytest.approx(GOLDEN[strategy], rel=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
def test_a_missing_gpu_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="device must be auto or cpu here, got 'cuda': torch finds no GPU"):
        execute(Settings(run={"rounds": 1, "device": "cuda"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_records_its_device_and_resumes_only_there(tmp_path: Path) -> None:
    here = Settings(run={"rounds": 2, "device": "cpu"})
    execute(here, tmp_path / "run")
    config = (tmp_path / "run" / "config.toml").read_text()
    assert 'device = "cpu"' in config
    assert 'precision = "float32"' in config
    folder = RunFolder(tmp_path / "run")
    for change in ({}, {"device": "auto"}, {"precision": "float32"}):
        folder.check(here.model_copy(update={"run": here.run.model_copy(update=change)}), resume=True)
    for change in ({"device": "cuda"}, {"precision": "bfloat16"}):
        with pytest.raises(InputError, match="holds a run with other settings"):
            folder.check(here.model_copy(update={"run": here.run.model_copy(update=change)}), resume=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
def test_a_run_started_on_a_gpu_is_read_anywhere_and_resumes_only_there(tmp_path: Path) -> None:
    execute(settings(device="auto"), tmp_path / "run", **PARTS)
    folder = RunFolder(tmp_path / "run")
    config = folder.config.read_text().replace('"cpu"', '"cuda"').replace('"float32"', '"tf32"')
    folder.config.write_text(config)
    assert execute(settings(device="auto"), tmp_path / "run", **PARTS)["rounds"] == 30
    folder.summary.unlink()
    with pytest.raises(
        InputError, match=r"holds a run that was started on a GPU: \[run\] device must be .*torch finds no GPU"
    ):
        execute(settings(device="auto"), tmp_path / "run", resume=True, **PARTS)


def test_a_cpu_multiplies_in_float32_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="precision must be auto or float32 on a CPU, got 'bfloat16'"):
        execute(settings(precision="bfloat16"), tmp_path / "run", **PARTS)


@dataclass(frozen=True)
class SlowScore:
    """A score as a GPU gives it: not there unless it is waited for, or asked for the third time."""

    score: PendingScore
    asked: list[None] = field(default_factory=list)

    def ready(self) -> bool:
        self.asked.append(None)
        return len(self.asked) > 2

    def result(self) -> Score:
        return self.score.result()


def test_lines_wait_for_a_score_and_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(settings(), tmp_path / "at-once", **PARTS)
    at_once, told = CpuBackend.begin_score, list[dict[str, Any]]()
    monkeypatch.setattr(CpuBackend, "begin_score", lambda self, vector: SlowScore(at_once(self, vector)))
    execute(settings(), tmp_path / "slow", progress=told.append, **PARTS)
    assert (tmp_path / "slow" / "metrics.jsonl").read_bytes() == (tmp_path / "at-once" / "metrics.jsonl").read_bytes()
    assert [line["round"] for line in told] == list(range(1, len(told) + 1))

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 7:
            raise StoppedError

    often = settings().model_copy(update={"run": settings().run.model_copy(update={"checkpoint_every_s": 1e-9})})
    with pytest.raises(StoppedError):
        execute(often, tmp_path / "stopped", progress=stop, **PARTS)
    execute(settings(), tmp_path / "stopped", resume=True, **PARTS)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "at-once" / name).read_bytes()


def without_client_scores(path: Path) -> list[str]:
    """The lines of a run's metrics as they would be without the scores of clients."""
    lines = read_metrics(path / "metrics.jsonl")
    new = ("client_accuracy", "client_loss", "global_loss")
    return [json.dumps({name: line[name] for name in line if name not in new}) for line in lines]


@pytest.mark.parametrize("strategy", ["lesson", "fedavg"])
def test_client_scores_are_looked_at_and_change_nothing_else(tmp_path: Path, strategy: str) -> None:
    execute(settings(strategy), tmp_path / "without", **PARTS)
    execute(settings(strategy, client_scores_every_s=60.0), tmp_path / "with", **PARTS)
    before, after = content(tmp_path / "without"), content(tmp_path / "with")
    assert without_client_scores(tmp_path / "with") == before["metrics.jsonl"].decode().splitlines()
    assert {name for name in before if before[name] != after[name]} == {"metrics.jsonl"}
    start_s = 0.0
    for line in read_metrics(tmp_path / "with" / "metrics.jsonl"):
        due = math.floor(line["time_s"] / 60.0 + 1e-9) > math.floor(start_s / 60.0 + 1e-9)
        assert ("client_accuracy" in line) == ("client_loss" in line) == due
        start_s = line["time_s"]


def test_client_scores_are_those_of_the_newest_model(tmp_path: Path) -> None:
    """Rounds of 20 s: after every third, and in round 15 together with a test score."""
    scored = settings(client_scores_every_s=60.0)
    execute(scored, tmp_path / "run", **PARTS)
    lines = [line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if "client_loss" in line]
    assert [line["round"] for line in lines] == [3, 6, 9, 12, 15, 18, 21, 24, 27, 30]
    assert [line["round"] for line in lines if "loss" in line] == [15, 30]
    run = build(scored, **PARTS)
    for line in lines:
        while run.loop.round < line["round"]:
            run.loop.step()
        expected = run.evaluator.client_scores(run.model)
        assert line["client_accuracy"] == expected.accuracy.tolist()
        assert line["client_loss"] == expected.loss.tolist()
    run.close()
    assert sum(lines[-1]["client_loss"]) < sum(lines[0]["client_loss"])


@pytest.mark.parametrize(("stop", "slow"), [(3, False), (15, True)])
def test_a_run_with_client_scores_resumes_bit_identically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int, slow: bool
) -> None:
    """Also where a line has both scores and waits for the other."""
    scored = settings(client_scores_every_s=60.0)
    execute(scored, tmp_path / "whole", **PARTS)
    if slow:
        at_once = CpuBackend.begin_score
        monkeypatch.setattr(CpuBackend, "begin_score", lambda self, vector: SlowScore(at_once(self, vector)))

    def break_off(line: dict[str, Any]) -> None:
        if line["round"] == stop:
            raise StoppedError

    often = settings(client_scores_every_s=60.0, checkpoint_every_s=1e-9)
    with pytest.raises(StoppedError):
        execute(often, tmp_path / "broken", progress=break_off, **PARTS)
    execute(scored, tmp_path / "broken", resume=True, **PARTS | {"num_threads": 3})
    assert content(tmp_path / "broken") == content(tmp_path / "whole")


def test_a_client_without_samples_is_written_as_null() -> None:
    fields = client_fields(ClientScores(np.array([0.5, np.nan]), np.array([1.25, np.nan]), 1.25))
    assert json.loads(json.dumps(fields, allow_nan=False)) == {
        "global_loss": 1.25,
        "client_accuracy": [0.5, None],
        "client_loss": [1.25, None],
    }


class FakeRecord:
    """The part of a round's record that decides whether it is evaluated."""

    def __init__(self, round: int, end_s: float) -> None:
        self.round, self.end_s = round, end_s


def evaluated(count: int, round_s: float, **run: Any) -> list[int]:
    """Those of so many rounds of equal length after which a run is evaluated."""
    grid = EvaluationGrid(settings(**{"rounds": None} | run).run)
    ends = [(number, round_s * number) for number in range(1, count + 1)]
    return [number for number, end_s in ends if grid.is_due(end_s - round_s, FakeRecord(number, end_s))]


def test_a_run_is_evaluated_forty_times_at_times_drawn_from_the_seed() -> None:
    """1,000 rounds of 10 s, 25 in each fortieth: one evaluation in each of them, after odd and even rounds alike."""
    auto = {"eval_every_s": "auto", "time_budget_s": 10_000.0}
    first, other = (evaluated(1000, 10.0, seed=seed, **auto) for seed in (0, 1))
    assert [(number - 1) // 25 for number in first] == list(range(40))
    assert first != other
    assert 10 <= sum(number % 2 for number in first) <= 30
    longer = evaluated(500, 20.0, seed=0, **auto)
    assert longer == [math.ceil(number / 2) for number in first], "the times do not depend on the rounds"
    assert evaluated(8, 1000.0, **auto) == list(range(1, 9)), "rounds longer than a fortieth are all evaluated"


def test_the_times_of_evaluations_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def counted(seed: int, what: str, part: int) -> np.random.Generator:
        drawn.append(part)
        return stream(seed, what, part)

    monkeypatch.setattr("lesson.runs.execute.stream", counted)
    evaluated(1000, 10.0, eval_every_s="auto", time_budget_s=10_000.0, rounds=1000)
    assert sorted(drawn) == list(range(41))


def test_a_run_limited_by_rounds_is_evaluated_forty_times() -> None:
    assert [(number - 1) // 10 for number in evaluated(400, 7.0, eval_every_s="auto", rounds=400)] == list(range(40))
    assert evaluated(3, 7.0, eval_every_s="auto", rounds=3) == [1, 2, 3]


def test_jitter_moves_evaluations_within_their_interval() -> None:
    """Intervals of 200 s are 20 rounds of 10 s: without jitter, evaluation k follows round 20 k."""
    fixed = {"eval_every_s": 200.0, "rounds": 1000}
    usual, none = evaluated(1000, 10.0, **fixed), evaluated(1000, 10.0, eval_jitter=0.0, **fixed)
    assert usual == none == list(range(20, 1001, 20))
    whole, other = (evaluated(1000, 10.0, eval_jitter=1.0, seed=seed, **fixed) for seed in (0, 1))
    assert whole != other
    assert [(number - 1) // 20 for number in whole] == list(range(50))
    assert 15 <= sum(number % 2 for number in whole) <= 35, "after odd and even rounds alike"
    half = evaluated(1000, 10.0, eval_jitter=0.5, **fixed)
    assert [(number - 1) // 20 for number in half] == list(range(50))
    assert min((number - 1) % 20 for number in half) >= 9, "by at most half an interval"


def test_jitter_is_the_same_for_every_strategy_and_after_a_resume() -> None:
    fixed = {"eval_every_s": 200.0, "rounds": 1000, "eval_jitter": 1.0}
    short, long = evaluated(1000, 10.0, **fixed), evaluated(500, 20.0, **fixed)
    assert long == [math.ceil(number / 2) for number in short], "the times do not depend on the rounds"
    grid = EvaluationGrid(settings(**fixed).run)  # a new one, as after a resume in round 500
    later = [
        number for number in range(501, 1001) if grid.is_due(10.0 * number - 10, FakeRecord(number, 10.0 * number))
    ]
    assert later == [number for number in short if number > 500]


def test_jitter_moves_evaluations_on_client_data_too() -> None:
    """At τ = 20 s, multiples of 10,000 s follow every 500th round, in which tiers 2, 4, 5 and 10 have just been
    aggregated. With "auto", only these evaluations are moved."""

    def due(**run: Any) -> list[int]:
        grid = EvaluationGrid(settings(client_scores_every_s=10_000.0, rounds=5000, **run).run)
        ends = [(number, 20.0 * number) for number in range(1, 5001)]
        return [number for number, end_s in ends if grid.are_clients_due(end_s - 20, FakeRecord(number, end_s))]

    assert due(eval_every_s=500.0) == due(eval_every_s="auto") == list(range(500, 5001, 500))
    moved = due(eval_every_s=500.0, eval_jitter=1.0)
    assert moved == due(eval_every_s="auto", eval_jitter=1.0)
    assert [(number - 1) // 500 for number in moved] == list(range(10))
    assert 2 <= sum(number % 2 for number in moved) <= 8


def test_points_in_the_same_round_are_one_evaluation() -> None:
    """Rounds of 340 s have one or two multiples of 200 s, jittered points none to three; each round is evaluated at
    most once."""
    found = evaluated(300, 340.0, eval_every_s=200.0, eval_jitter=1.0)
    assert 280 <= len(set(found)) == len(found) < 300 * 340 / 200


def test_jittered_evaluations_are_those_of_the_run(tmp_path: Path) -> None:
    wanted = {"rounds": 12, "eval_every_s": 60.0, "eval_jitter": 1.0}
    execute(settings(**wanted), tmp_path / "run", **PARTS)
    rounds = Run.load(tmp_path / "run").curve["round"].tolist()
    assert rounds == sorted({*evaluated(12, 20.0, **wanted), 12})


def test_the_final_model_counts_at_the_end_of_the_curve(tmp_path: Path) -> None:
    """Evaluated at 100 and 200 s, and once more when the run ends at 240 s."""
    summary = execute(settings(rounds=12), tmp_path / "run", **PARTS)
    curve = Study([Run.load(tmp_path / "run")]).curves()
    assert curve["round"].tolist() == [5, 10, 12]
    assert curve["accuracy"].tolist()[-1] == summary["accuracy"] == summary["accuracy_last10"]
    kept = Run.load(tmp_path / "run").curve
    assert kept["round"].tolist() == [5, 10, 12]
    assert kept["accuracy"].tolist()[-1] == round(summary["accuracy"], 4)
    assert "accuracy" not in read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]


def test_the_end_of_a_run_is_at_most_its_last_quarter() -> None:
    assert [num_last(count) for count in (1, 3, 4, 8, 20, 40, 400)] == [1, 1, 1, 2, 5, 10, 10]


@pytest.mark.parametrize("stop", [3, 4, 5])
def test_an_evaluation_that_falls_between_two_rounds_is_made_after_the_second(
    tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of 20 s end at 20, 50, 80, 110, … s. Of the multiples of 85 s, the first lies between rounds 3 and 4, the
    second is the end of round 6, and the third, 255 s, lies in round 9, from 240 s to 260 s."""
    # 10 s pass between two rounds, as on the wall clock during an evaluation.
    monkeypatch.setattr(NominalWorld, "open", lambda *args: args[3] + (10.0 if args[2] > 1 else 0.0))
    short = settings("fedcs", rounds=10, eval_every_s=85.0, client_scores_every_s=85.0, checkpoint_every_s=0.001)
    check_resumes(short, tmp_path, stop, **PARTS)
    lines = read_metrics(tmp_path / "broken" / "metrics.jsonl")
    assert [line["time_s"] for line in lines][:4] == [20.0, 50.0, 80.0, 110.0]
    for name in ("accuracy", "client_accuracy"):
        assert [line["round"] for line in lines if name in line] == [4, 6, 9]
