"""`lesson plan --flight`: the clients of a recording."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.flights import write_flight
from lesson.cli import main

NAN = float("nan")
ROUNDS = [[9.0, 10, 30], [4, 12, 28], [4, 11, -60], [5, 14, 32], [4, 11, 31], [6, NAN, 30]]
"""a: 4, 4, 5, 4, 6 without its cold first reply; b: 10, 12, 11, 14, 11; c: 30, 28, 32, 31, 30 and a failure."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["plan", "--json", *argv]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_clients_have_the_medians_of_their_replies(capsys: pytest.CaptureFixture[str]) -> None:
    write_flight(Path("flight.jsonl"), ROUNDS)
    plan = told(capsys, "--flight", "flight.jsonl", "--deadline", "12")
    assert [(one["client"], one["latency_s"], one["tier"]) for one in plan["clients"]] == [
        ("a", 4.0, 1), ("b", 11.0, 1), ("c", 30.0, 3),
    ]  # fmt: skip
    assert plan["clients"][1]["compute_s"] == pytest.approx(0.75 * 11)
    assert plan["notes"] == [
        "the first reply is left out for 1 of 3 clients: it took longer than all later ones, and more than 1.5 times "
        "their median",
        "latencies are the medians of the recording; lesson replay simulates how they vary",
    ]
    assert main(["plan", "--flight", "flight.jsonl", "--deadline", "auto", "--html", "plan.html"]) == 0
    shown = capsys.readouterr().out
    assert "3 clients (flight.jsonl), deadline 4.4 s" in shown
    assert '"source":"flight.jsonl"' in Path("plan.html").read_text()


def test_a_client_that_never_replied_is_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    write_flight(Path("flight.jsonl"), [[5.0, -20], [5, -20]])
    plan = told(capsys, "--flight", "flight.jsonl")
    assert plan["unreachable"] == ["b"]


def test_a_client_is_promoted_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    write_flight(Path("flight.jsonl"), [[5.0, 9.0]] * 3)
    flags = ["--flight", "flight.jsonl", "--deadline", "2"]
    assert told(capsys, *flags)["promoted"] is None
    promoted = told(capsys, *flags, "--set", "ensure_first_tier=true")["promoted"]
    assert promoted == {"client": "a", "latency_s": 5.0}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--latencies", "x.csv"], "--latencies cannot be combined with --flight: the recording lists the clients"),
        (["--clients", "5"], "--clients cannot be combined with --flight: the recording lists the clients"),
        (["--set", "latencies=x.csv"], "--flight cannot be combined with [fleet] latencies: both list the clients"),
        (["--set", "fading=rayleigh"], "[radio] fading cannot be combined with measured latencies"),
        (["--deadline", "auto", "--on-time", "0.9"], "--on-time has no effect unless latencies vary; set slowdown,"),
    ],
)
def test_flags_that_do_not_fit(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_flight(Path("flight.jsonl"), ROUNDS)
    assert main(["plan", "--flight", "flight.jsonl", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"lesson: {message}")


def test_a_bad_recording_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--flight", "none.jsonl"]) == 2
    assert capsys.readouterr().err.startswith("lesson: none.jsonl does not exist")
    Path("flight.jsonl").write_text('{"flight": 1}\n{"event": "asked", "t_s": 1, "client": "a"}\n')
    assert main(["plan", "--flight", "flight.jsonl", "--html", "plan.html"]) == 2
    assert capsys.readouterr().err == "lesson: flight.jsonl line 2: job must be given for the event 'asked'\n"
    assert not Path("plan.html").exists()
