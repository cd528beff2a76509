"""Training runs on measured clients."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import lesson
from helpers.resuming import StoppedError, check_resumes
from helpers.runs import PARTS
from helpers.small_tasks import tiny_task
from lesson import InputError, Settings
from lesson.cli import main
from lesson.runs.execute import execute

FILE = (
    "client,latency_s,compute_s,upload_s,num_samples\n"
    "phone,12,8,4,30\ntablet,25,20,5,20\npi,41,40,1,50\ngone,inf,,,40\n"
)
TINY = ["--task", "helpers.small_tasks:tiny_task", "--device", "cpu"]
TASK = "helpers.small_tasks:tiny_task"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lab.csv").write_text(FILE)


def settings(**changes: object) -> Settings:
    base = {"latencies": "lab.csv", "batch_size": 5, "split": "dirichlet-per-client", "rounds": 12, "device": "cpu"}
    return Settings(**base | changes)


def test_a_run_uses_names_latencies_and_samples_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Tiers 1, 2 and 3 of a deadline of 20 s: in 6 rounds, 6 + 3 + 2 updates."""
    flags = [*TINY, "--latencies", "lab.csv", "--rounds", "6", "--set", "batch_size=5", "--out", "run"]
    assert main(["run", *flags, "--set", "split=dirichlet-per-client"]) == 0
    clients = json.loads(Path("run/clients.json").read_text())["clients"]
    assert clients["name"] == ["phone", "tablet", "pi", "gone"]
    assert clients["latency_s"] == [12.0, 25.0, 41.0, None]
    assert clients["num_samples"] == [30, 20, 50, 40]
    assert (clients["x_km"], clients["compute_j"]) == (None, None)
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [sorted(line["merged"]) for line in lines] == [[0], [0, 1], [0, 2], [0, 1], [0], [0, 1, 2]]
    assert {line["energy_j"] for line in lines} == {None}
    page = Path("run/report.html").read_text()
    assert '"tablet"' in page
    assert "11 uploads" in capsys.readouterr().out


def test_the_split_decides_unless_it_takes_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*TINY, "--latencies", "lab.csv", "--rounds", "1", "--set", "split=iid", "--out", "run"]
    assert main(["run", *flags]) == 0
    assert "note: num_samples in lab.csv has no effect: split = iid determines" in capsys.readouterr().out
    assert json.loads(Path("run/clients.json").read_text())["clients"]["num_samples"] == [50, 50, 50, 50]
    Path("lab.csv").write_text(FILE.replace(",30\n", ",3000\n"))
    with pytest.raises(InputError, match=r"num_samples in lab\.csv requires 3110 samples, but the data set has 200"):
        execute(settings(), "large", **PARTS)


def test_comparisons_and_sweeps_in_several_processes() -> None:
    Path("small.csv").write_text("client,latency_s\na,3\nb,9\n")
    task = {"task": TASK, "batch_size": 5, "split": "iid", "rounds": 4, "device": "cpu"}
    study = lesson.compare(
        ["lesson", "fedavg"], num_seeds=1, latencies="lab.csv", num_processes=2, out="compared", **task
    )
    times = {run.settings.strategy.name: run.summary["time_s"] for run in study.runs}
    assert times == {"lesson": 80.0, "fedavg": 164.0}
    assert study.table()["energy_j"].isna().all()
    swept = lesson.sweep({"fleet.latencies": ["lab.csv", "small.csv"]}, out="swept", deadline_s=10.0, **task)
    assert [run.settings.fleet.num_clients for run in swept.runs] == [4, 2]
    assert len(lesson.load("swept").runs) == 2
    assert len(lesson.load("compared").runs) == 2


def test_presence_and_traces_use_the_names_of_the_file() -> None:
    Path("presence.csv").write_text("client,from_s,to_s\nphone,50,inf\n")
    Path("trace.csv").write_text("client,round,compute_s,upload_s\nphone,1,5,1\ntablet,1,6,1\npi,1,7,1\ngone,1,8,1\n")
    execute(settings(presence="presence.csv", trace="trace.csv"), "run", **PARTS)
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert 0 not in lines[0]["merged"]
    assert 0 in lines[-1]["merged"]
    Path("presence.csv").write_text("client,from_s,to_s\nwatch,50,inf\n")
    with pytest.raises(InputError, match="unknown client 'watch'; the fleet has 4 clients: phone, tablet, pi, …"):
        execute(settings(presence="presence.csv"), "other", **PARTS)


@pytest.mark.parametrize("varying", [{}, {"slowdown": 0.5}])
def test_a_resumed_run_is_the_same(varying: dict[str, float], tmp_path: Path, round_by_round: None) -> None:
    check_resumes(settings(checkpoint_every_s=1e-9, **varying), tmp_path, after_round=5, **PARTS)


def test_a_changed_file_is_noticed_when_a_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, round_by_round: None
) -> None:
    def break_off(line: dict[str, int]) -> None:
        if line["round"] == 5:
            raise StoppedError

    chosen = settings(checkpoint_every_s=1e-9)
    with pytest.raises(StoppedError):
        execute(chosen, tmp_path / "run", progress=break_off, **PARTS)
    Path("lab.csv").write_text(FILE.replace("pi,41,40,1", "pi,43,42,1"))
    with pytest.raises(InputError, match=r"another version of lab\.csv"):
        execute(chosen, tmp_path / "run", resume=True, **PARTS)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    with pytest.raises(InputError, match=r"lab\.csv does not exist; latencies must be a CSV file"):
        execute(chosen, tmp_path / "run", resume=True, **PARTS)
    monkeypatch.chdir("..")
    Path("lab.csv").write_text(FILE)
    assert execute(chosen, tmp_path / "run", resume=True, **PARTS)["rounds"] == 12


def test_reports_do_not_need_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    execute(settings(client_scores_every_s=40.0), "run", **PARTS)
    Path("lab.csv").unlink()
    assert list(lesson.load("run").clients) == [
        "round", "time_s", "global_loss", "accuracy_tier1", "accuracy_others",
    ]  # fmt: skip
    assert main(["report", "run"]) == 0
    assert "run/report.html" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--latencies", "none.csv"], "none.csv does not exist; latencies must be a CSV file with the columns"),
        (["--latencies", "lab.csv", "--set", "num_clients=9"], "[fleet] num_clients must be 4, the number of clients"),
        (["--latencies", "lab.csv", "--set", "latencies=x.csv"], "fleet.latencies must be set only once, got 'x.csv'"),
        (["--latencies", "lab.csv", "--set", "speed_mps=[1.0,2.0]"], "[radio] speed_mps cannot be combined with"),
        (["--set", "latencies=lab.csv", "--set", "slowdown=0.1"], "[fleet] slowdown needs compute_s of every client"),
    ],
)
def test_bad_input(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("lab.csv").write_text("client,latency_s\na,1\nb,2\nc,3\nd,4\n")
    for command in (["run"], ["compare", "--seeds", "1", "--strategies", "lesson,fedavg"]):
        assert main([*command, *TINY, "--set", "split=iid", "--rounds", "1", "--out", "run", *flags]) != 0
        told = capsys.readouterr().err.splitlines()
        assert any(message in line for line in told), told


def test_strategies_that_need_the_parts_of_a_latency_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("lab.csv").write_text("client,latency_s\na,1\nb,2\n")
    flags = [*TINY, "--set", "split=iid", "--rounds", "1", "--latencies", "lab.csv", "--out", "run"]
    assert main(["run", *flags, "--strategy", "fedcs-greedy"]) == 2
    assert "compute_s" in capsys.readouterr().err


def test_a_task_with_fewer_clients_than_the_file() -> None:
    with pytest.raises(InputError, match=r"lab\.csv lists 4 clients, but the task has 3; remove some, or use another"):
        lesson.run(
            task=replace(tiny_task(), clients=[[0, 1], [2, 3], [4, 5]]), out="run", latencies="lab.csv", rounds=1
        )
