"""Training runs on measured clients."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lesson
from helpers.runs import PARTS
from helpers.small_tasks import tiny_task
from lesson import InputError, Settings
from lesson.cli import main
from lesson.experiments.engines import InProcessEngine
from lesson.runs.execute import execute
from lesson.runs.summary import read_metrics

FILE = (
    "client,latency_s,compute_s,upload_s,num_samples\n"
    "phone,12,8,4,30\ntablet,25,20,5,20\npi,41,40,1,50\ngone,inf,,,40\n"
)
TASK = "helpers.small_tasks:tiny_task"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lab.csv").write_text(FILE)


def settings(**changes: object) -> Settings:
    base = {"latencies": "lab.csv", "batch_size": 5, "split": "dirichlet-per-client", "rounds": 12, "device": "cpu"}
    return Settings(**base | changes)


def clients(folder: str = "run") -> dict[str, Any]:
    return dict(json.loads(Path(folder, "clients.json").read_text())["clients"])


def test_names_latencies_and_samples_come_from_the_file() -> None:
    """Tiers 1, 2 and 3 of a deadline of 20 s: in 6 rounds, 6 + 3 + 2 updates."""
    flags = ["--task", TASK, "--latencies", "lab.csv", "--rounds", "6", "--set", "batch_size=5", "--device", "cpu"]
    assert main(["run", *flags, "--set", "split=dirichlet-per-client", "--out", "run"]) == 0
    assert clients()["name"] == ["phone", "tablet", "pi", "gone"]
    assert clients()["latency_s"] == [12.0, 25.0, 41.0, None]
    assert clients()["num_samples"] == [30, 20, 50, 40]
    assert (clients()["x_km"], clients()["compute_j"]) == (None, None)
    lines = read_metrics("run/metrics.jsonl")
    assert [sorted(line["merged"]) for line in lines] == [[0], [0, 1], [0, 2], [0, 1], [0], [0, 1, 2]]
    assert {line["energy_j"] for line in lines} == {None}
    Path("lab.csv").unlink()
    assert main(["report", "run"]) == 0, "the report does not need the file"


def test_comparisons_and_sweeps() -> None:
    Path("small.csv").write_text("client,latency_s\na,3\nb,9\n")
    task = {"task": TASK, "batch_size": 5, "split": "iid", "rounds": 4, "device": "cpu"}
    study = lesson.compare(
        ["lesson", "fedavg"], num_seeds=1, latencies="lab.csv", num_processes=1, out="compared", **task
    )
    times = {run.settings.strategy.name: run.summary["time_s"] for run in study.runs}
    assert times == {"lesson": 80.0, "fedavg": 164.0}
    assert study.table()["energy_j"].isna().all()
    axes = {"fleet.latencies": ["lab.csv", "small.csv"]}
    swept = lesson.sweep(axes, out="swept", deadline_s=10.0, engine=InProcessEngine(), **task)
    assert [run.settings.fleet.num_clients for run in swept.runs] == [4, 2]


def test_presence_and_traces_use_the_names_of_the_file() -> None:
    Path("presence.csv").write_text("client,from_s,to_s\nphone,50,inf\n")
    Path("trace.csv").write_text("client,round,compute_s,upload_s\nphone,1,5,1\ntablet,1,6,1\npi,1,7,1\ngone,1,8,1\n")
    execute(settings(presence="presence.csv", trace="trace.csv"), "run", **PARTS)
    lines = read_metrics("run/metrics.jsonl")
    assert 0 not in lines[0]["merged"]
    assert 0 in lines[-1]["merged"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_clients": 9}, "num_clients"),
        ({"latencies": "many.csv", "split": "dirichlet-per-client"}, "num_samples"),
        ({"presence": "who.csv"}, "'watch'"),
        ({"speed_mps": (1.0, 2.0)}, "speed_mps"),
        ({"latencies": "bare.csv", "strategy": "fedcs-greedy"}, "compute_s"),
        ({"task": replace(tiny_task(), clients=[[0, 1], [2, 3], [4, 5]])}, "lab.csv lists 4 clients"),
    ],
)
def test_files_that_do_not_fit_are_rejected(changes: dict[str, Any], why: str) -> None:
    Path("who.csv").write_text("client,from_s,to_s\nwatch,50,inf\n")
    Path("many.csv").write_text(FILE.replace(",30\n", ",3000\n"))
    Path("bare.csv").write_text("client,latency_s\na,1\nb,2\n")
    base = {"latencies": "lab.csv", "rounds": 1, "device": "cpu", "task": TASK}
    with pytest.raises(InputError, match=why):
        lesson.run(out="run", **base | changes)
