"""`lesson replay` on small recordings: tables, JSON, the page, the check, and one-line errors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from helpers.flights import write_flight
from lesson.cli import main
from lesson.experiments.engines import InProcessEngine

QUICK = ["--replicates", "3"]


@pytest.fixture
def constant(tmp_path: Path) -> str:
    """Three clients that always take 4, 9 and 19 s, recorded for 20 rounds of FedAvg."""
    return str(write_flight(tmp_path / "flight.jsonl", [[4.0, 9.0, 19.0]] * 20))


def test_reality_stands_beside_the_alternatives(constant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", constant, "--strategies", "lesson,fedavg,fedcs", "--deadline", "10", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "flight.jsonl: 3 clients, 380 s, 20 rounds" in out
    rows = {line.split("  ")[0].strip(): line.split() for line in out.splitlines() if line.startswith(" ")}
    assert rows["recorded: fedavg"][2:] == ["19", "568", "0.00", "–", "0%", "–"]
    assert rows["lesson, 10 s"][3:] == ["10", "900", "(900–900)", "0.20", "100%", "0%", "–"]
    assert rows["fedcs, 10 s"][-1] == "c"
    assert "Use lesson, 10 s: it has 1.58 times as many updates per hour as fedavg" in " ".join(out.split())


def test_json_and_page_hold_the_same_numbers(constant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "replay.html"
    assert main(["replay", constant, "--deadline", "10", "--json", "--html", str(page), *QUICK]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outcomes"][0]["values"]["updates_per_h"]["mean"] == pytest.approx(900)
    assert told["reality"]["round_s"] == 19.0
    assert told["advice"]["snippet"].endswith("strategy = LessonStrategy(strategy=FedBuff())\n")
    text = page.read_text(encoding="utf-8")
    inside = json.loads(text.partition('<script id="data" type="application/json">')[2].partition("</script>")[0])
    assert inside["outcomes"] == told["outcomes"]


def test_auto_takes_a_deadline_that_some_clients_meet(constant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", constant, "--strategies", "lesson", "--json", *QUICK]) == 0
    label = json.loads(capsys.readouterr().out)["outcomes"][0]["label"]
    assert label in (
        "lesson, 4.4 s",
        "lesson, 9.9 s",
        "lesson, 21 s",
    )


def test_options_reach_one_strategy(constant: str, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["--strategies", "fedbuff", "--deadline", "9", "--set", "fedbuff.concurrency=1", "--json", *QUICK]
    assert main(["replay", constant, *changes]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "FedBuff(concurrency=1)" in told["advice"]["snippet"]


def test_a_check_honors_the_options_of_the_recorded_strategy(constant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", constant, "--check", "--set", "fedavg.fraction=0.4", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "fedavg, fraction = 0.4" in out
    assert not re.search(r"updates per hour +568", out)  # one of three clients per round has fewer
    assert main(["replay", constant, "--check", "--set", "fedbuff.concurrency=1", *QUICK]) == 2
    assert "the strategy is fedavg" in capsys.readouterr().err


def test_nothing_is_trained_if_no_strategy_can_run(
    constant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--strategies", "fedcs", "--deadline", "1", "--dataset", "mnist", "--out", str(tmp_path / "out")]
    assert main(["replay", constant, *flags, *QUICK]) == 2
    error = capsys.readouterr().err
    assert "fedcs, 1 s cannot run" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_snippet_sets_both_deadlines(constant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", constant, "--strategies", "fedcs", "--deadline", "30", "--json", *QUICK]) == 0
    snippet = json.loads(capsys.readouterr().out)["advice"]["snippet"]
    assert "LessonStrategy(deadline_s=30, strategy=FedCS(deadline_s=30))" in snippet


def test_missing_compute_times_name_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_flight(tmp_path / "f.jsonl", [[4.0, 9.0]] * 5, compute_share=None)
    assert main(["replay", str(path), "--strategies", "lesson-filled", "--deadline", "10", "--json", *QUICK]) == 0
    assert any("report_times" in note for note in json.loads(capsys.readouterr().out)["notes"])


def test_a_check_says_what_was_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    path = write_flight(tmp_path / "f.jsonl", (np.array([5.0, 9.0]) * rng.lognormal(0, 0.1, (30, 2))).tolist())
    assert main(["replay", str(path), "--check", "--replicates", "20"]) == 0
    out = capsys.readouterr().out
    assert "the second half, predicted from the first (fedavg)" in out
    assert "order of clients by latency: 100% of 1 pairs as predicted" in out


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--strategies", "leson"], "unknown strategy 'leson'; did you mean 'lesson'?"),
        (["--strategies", ""], "--strategies must be distinct names separated by commas, got ''"),
        (
            ["--strategies", "oort"],
            "oort cannot be replayed: it needs update_loss, which a recording does not show; leave it out",
        ),
        (["--deadline", "-1"], "--deadline must be > 0, got -1"),
        (["--out", "x"], "--out has no effect unless models are trained; give --dataset or --task"),
        (["--replicates", "1"], "the number of replicates must be from 2 to 10000, got 1"),
        (["--time-budget", "0"], "--time-budget must be > 0 and finite, got 0"),
        (["--set", "num_clients=3"], "--set must name a strategy's option, such as fedbuff.concurrency=5"),
        (["--check"], "--check cannot be combined with --html, --json"),
        (["--html", "page.pdf"], "html must end in .html, .htm, got 'page.pdf'"),
    ],
)
def test_bad_options_give_one_line(
    constant: str, flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = ["--json"] if flags == ["--check"] else []
    assert main(["replay", constant, *flags, *extra]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


def test_a_file_that_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    path.write_text("client,latency_s\n")
    assert main(["replay", str(path)]) == 2
    assert "a recording must start with" in capsys.readouterr().err


def test_the_table_fits_into_80_columns(
    constant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["replay", constant, "--strategies", "lesson,fedcs", "--deadline", "10", *QUICK]) == 0
    lines = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    # The names of clients are left out.
    row = next(line.split() for line in lines if line.startswith("fedcs, 10 s"))
    assert row == ["fedcs,", "10", "s", "10", "720", "(720–720)", "0.00", "100%", "0%", "1"]


def test_a_replay_without_training_says_that_it_compares_schedules(
    constant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", constant, "--strategies", "fedavg", "--json", "--deadline", "10", *QUICK]) == 0
    assert "compares schedules, not models" in json.loads(capsys.readouterr().out)["notes"][-1]


def test_a_changed_recording_does_not_reuse_trained_runs(
    constant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lesson.api.make_engine", lambda **_: InProcessEngine())
    out = tmp_path / "out"
    flags = ["--strategies", "fedavg", "--deadline", "10", "--time-budget", "60", "--seeds", "1", *QUICK]
    command = ["replay", constant, "--task", "helpers.small_tasks:tiny_task", "--out", str(out), *flags]
    assert main(command) == 0
    assert main(command) == 0
    assert "note: reusing 1 finished run" in capsys.readouterr().err
    before = (out / "fleet" / "trace.csv").read_bytes()
    write_flight(Path(constant), [[4.0, 9.0, 29.0]] * 20)
    assert main(command) == 2
    assert "is from another recording" in capsys.readouterr().err
    assert (out / "fleet" / "trace.csv").read_bytes() == before
