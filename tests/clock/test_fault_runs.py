"""Whole runs in which things go wrong: what is written down, how they end, and that they resume byte-identically."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.resuming import check_resumes
from helpers.small_tasks import tiny_task
from lesson.cli import main
from lesson.clock.loop import NOBODY
from lesson.runs.execute import execute
from lesson.settings.settings import Settings

pytestmark = pytest.mark.usefixtures("few_test_images")
PARTS: dict[str, Any] = {"task": tiny_task(), "num_threads": 1}
DISCONNECTIONS = {"disconnect_before": 0.1, "disconnect_during": 0.1, "offline_s": 60.0}
TROUBLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "not finite": (DISCONNECTIONS | {"corrupting_clients": 0.4, "nan": 0.3, "infinity": 0.1}, {}),
    "excluded": (DISCONNECTIONS | {"corrupting_clients": 0.4, "nan": 0.6}, {"exclude_after_rejections": 3}),
    "clipped": ({"corrupting_clients": 0.3, "scaled": 0.5, "scale": 30.0}, {"norm": "clip", "norm_window": 20}),
    "too far": ({"corrupting_clients": 0.3, "scaled": 0.5, "scale": 30.0}, {"norm": "reject"}),
    "median": (DISCONNECTIONS | {"corrupting_clients": 0.3, "flipped": 1.0, "scaled": 0.5}, {"aggregation": "median"}),
    "trimmed": ({"corrupting_clients": 0.3, "flipped": 1.0}, {"aggregation": "trimmed-mean", "trim": 0.3}),
}


def settings(trouble: str, strategy: str = "lesson", rounds: int = 25) -> Settings:
    faults, guards = TROUBLES[trouble]
    return Settings(
        fleet={"num_clients": 8},
        training={"batch_size": 5},
        data={"split": "iid"},
        strategy={"name": strategy},
        run={"eval_every_s": 100.0, "rounds": rounds, "device": "cpu", "checkpoint_every_s": 1e-9},
        faults=faults,
        guards=guards,
    )


@pytest.mark.parametrize(
    ("trouble", "strategy"),
    [("excluded", "lesson"), ("clipped", "fedasync"), ("median", "fedat")],
)
def test_a_run_with_faults_resumes_byte_identically(tmp_path: Path, trouble: str, strategy: str) -> None:
    check_resumes(settings(trouble, strategy), tmp_path, 11, **PARTS)


def test_rejections_are_written_down_with_reason_and_client(tmp_path: Path) -> None:
    summary = execute(settings("not finite"), tmp_path / "run", **PARTS)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    told = [line["rejections"] for line in lines if "rejections" in line]
    assert all(list(reasons) == ["not finite"] for reasons in told)
    clients = [client for reasons in told for client in reasons["not finite"]]
    assert len(set(clients)) <= 3, "0.4 of eight clients send corrupted uploads"
    assert summary["rejected"] == len(clients) == summary["rejected_by"]["not finite"] > 0
    for line in lines:
        assert line.get("rejected", 0) == sum(map(len, line.get("rejections", {}).values()))
        assert not set(line.get("merged", [])) & set(line.get("rejections", {}).get("not finite", []))


def test_guards_change_nothing_without_faults(tmp_path: Path) -> None:
    plain = settings("trimmed").model_copy(update={"faults": Settings().faults, "guards": Settings().guards})
    execute(plain, tmp_path / "plain", **PARTS)
    sections = plain.to_sections() | {"guards": {"finite": False, "exclude_after_rejections": 0}}
    execute(Settings(**sections), tmp_path / "off", **PARTS)
    for name in ("metrics.jsonl", "model.safetensors", "clients.json"):
        assert (tmp_path / "off" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_a_run_whose_clients_have_all_left_ends_with_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    faults = [
        "--set",
        "faults.disconnect_before=0.5",
        "--set",
        "faults.offline_forever=1.0",
        "--set",
        "fleet.num_clients=6",
    ]
    assert main(["run", "--out", str(out), "--time-budget", "5000", "--device", "cpu", *faults]) == 3
    told = capsys.readouterr()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ended_early"] == NOBODY
    assert summary["notes"][0] == NOBODY
    assert told.err == f"lesson: lesson with seed 0 ended early, at {summary['time_s']:g} s: {NOBODY}\n"
    assert "accuracy" in told.out
    assert (out / "model.safetensors").exists()
    assert main(["run", "--out", str(out), "--time-budget", "5000", "--device", "cpu", *faults]) == 3


def test_a_comparison_in_which_clients_are_all_excluded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "os.sched_getaffinity", lambda _: range(1)
    )  # runs stay in this process, which has already imported torch
    sets = ["faults.nan=1.0", "guards.exclude_after_rejections=2", "fleet.num_clients=4", "faults.scale=3.0"]
    flags = [word for one in sets for word in ("--set", one)]
    command = ["compare", "--strategies", "lesson,fedavg", "--seeds", "1", "--out", str(tmp_path / "out"), *flags]
    assert main([*command, "--time-budget", "3000"]) == 3
    told = capsys.readouterr()
    assert "note: faults.scale = 3.0 has no effect unless scaled is > 0" in told.out
    assert "(and 1 more): no client is connected anymore; 4 of 4 clients were excluded" in told.err.splitlines()[-1]
    assert (tmp_path / "out" / "report.html").exists()


def test_corrupted_values_without_guards_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["faults.nan=1.0", "guards.finite=false", "fleet.num_clients=4"]
    flags = [word for one in sets for word in ("--set", one)]
    assert main(["run", "--out", str(tmp_path / "run"), "--rounds", "9", "--device", "cpu", *flags]) == 3
    assert "the model is no longer finite after round" in capsys.readouterr().err
