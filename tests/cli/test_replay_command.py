"""`lesson replay` on small recordings."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.flights import write_flight
from lesson.cli import main
from lesson.experiments.engines import InProcessEngine

QUICK = ["--replicates", "3"]


@pytest.fixture
def constant(tmp_path: Path) -> str:
    """Three clients that always take 4, 9 and 19 s, recorded for 20 rounds of FedAvg."""
    return str(write_flight(tmp_path / "flight.jsonl", [[4.0, 9.0, 19.0]] * 20))


def replayed(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["replay", *argv, "--json", *QUICK]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_recording_is_compared_with_other_strategies(
    constant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In 20 s, LESSON aggregates two updates of a, two of b and one of c: 900 per hour. FedAvg: three in 19 s."""
    flags = [constant, "--strategies", "lesson,fedavg,fedcs", "--deadline", "10"]
    assert main(["replay", *flags, *QUICK]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(word in shown for word in ("recorded: fedavg", "lesson, 10 s", "900", "568", "1.58 times"))
    page = tmp_path / "replay.html"
    found = replayed(capsys, *flags, "--html", str(page))
    updates = {one["label"]: one["values"]["updates_per_h"]["mean"] for one in found["outcomes"]}
    assert updates == pytest.approx({"lesson, 10 s": 900, "fedavg": 3600 * 3 / 19, "fedcs, 10 s": 720})
    assert found["reality"]["round_s"] == 19.0
    assert "LessonStrategy(deadline_s=10)" in found["advice"]["snippet"]
    assert "not models" in found["notes"][-1]
    text = page.read_text(encoding="utf-8")
    inside = json.loads(text.partition('<script id="data" type="application/json">')[2].partition("</script>")[0])
    assert inside["outcomes"] == found["outcomes"]


def test_auto_chooses_a_deadline_that_some_clients_meet(constant: str, capsys: pytest.CaptureFixture[str]) -> None:
    label = replayed(capsys, constant, "--strategies", "lesson")["outcomes"][0]["label"]
    assert label in ("lesson, 4.4 s", "lesson, 9.9 s", "lesson, 21 s")


def test_snippet_has_the_options_of_the_strategy(constant: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--strategies", "fedbuff", "--deadline", "9", "--set", "fedbuff.concurrency=1"]
    assert "FedBuff(concurrency=1)" in replayed(capsys, constant, *flags)["advice"]["snippet"]
    snippet = replayed(capsys, constant, "--strategies", "fedcs", "--deadline", "30")["advice"]["snippet"]
    assert "LessonStrategy(deadline_s=30, strategy=FedCS(deadline_s=30))" in snippet


def test_check_takes_options_of_the_recorded_strategy(constant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", constant, "--check", "--set", "fedavg.fraction=0.4", *QUICK]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "fraction = 0.4" in shown
    assert "100% of 3 pairs" in shown


def test_trained_runs_are_reused_only_for_the_same_recording(
    constant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lesson.api.make_engine", lambda **_: InProcessEngine())
    out = tmp_path / "out"
    flags = ["--strategies", "fedavg", "--deadline", "10", "--time-budget", "60", "--seeds", "1", *QUICK]
    command = ["replay", constant, "--task", "helpers.small_tasks:tiny_task", "--out", str(out), *flags]
    assert main(command) == 0
    assert "Highest accuracy after training: fedavg." in " ".join(capsys.readouterr().out.split())
    assert main(command) == 0
    assert "reusing 1 finished run" in capsys.readouterr().err
    before = (out / "fleet" / "trace.csv").read_bytes()
    write_flight(Path(constant), [[4.0, 9.0, 29.0]] * 20)
    assert main(command) == 2
    assert "another recording" in capsys.readouterr().err
    assert (out / "fleet" / "trace.csv").read_bytes() == before
