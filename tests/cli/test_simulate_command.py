"""`lesson simulate`: its table, JSON and page, and that it does not import torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.pages import data_of
from lesson.cli import main


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.csv").write_text("client,latency_s,sd_s,count\nfast,10,1,3\nslow,30,,2\n")


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["simulate", "--latencies", "fleet.csv", *argv]) == 0
    return capsys.readouterr().out


def test_table_json_and_page_have_the_same_rows(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--strategies", "fedavg,fedbuff", "--set", "fedbuff.buffer_size=5", "--seeds", "2", "--versions", "4"]
    found = json.loads(printed(capsys, *flags, "--json", "--html", "page.html"))
    assert [(one["strategy"], one["seed"], one["versions"]) for one in found["schedules"]] == [
        ("fedavg", 0, 4),
        ("fedbuff", 0, 4),
        ("fedavg", 1, 4),
        ("fedbuff", 1, 4),
    ]
    assert (found["schedules"][0]["time_s"], found["schedules"][0]["energy_j"]) == (120.0, None)
    (section,) = data_of(Path("page.html"))["sections"]
    rows = [[cell for cell, _ in row] for row in section["items"][0]["table"]["rows"]]
    shown = [line.split() for line in printed(capsys, *flags).splitlines()]
    assert [row for row in shown if row[:1] in (["fedavg"], ["fedbuff"])] == rows
    assert rows[0] == ["fedavg", "0", "120", "4", "600", "0.00", "0.00", "0", "3.0"]


def test_notes_say_what_has_no_effect_and_what_ended_early(capsys: pytest.CaptureFixture[str]) -> None:
    Path("presence.csv").write_text(
        "client,from_s,to_s\nfast-1,0,25\nfast-2,0,25\nfast-3,0,25\nslow-1,0,25\nslow-2,0,25\n"
    )
    flags = ["--strategies", "fedasync", "--set", "presence=presence.csv", "--set", "power_w=1"]
    notes = [line for line in printed(capsys, *flags).splitlines() if line.startswith("note:")]
    assert len(notes) == 2
    assert "power_w" in notes[0]
    assert "fedasync with seed 0 ended early" in notes[1]
    assert "times vary" not in printed(capsys, "--set", "estimate=mean"), "they do: the file has sd_s"


def test_torch_is_not_imported() -> None:
    code = """
import sys
from lesson.cli import main
assert main(["simulate", "--latencies", "fleet.csv", "--versions", "3", "--html", "page.html"]) == 0
assert not {"torch", "pandas", "scipy", "matplotlib"} & sys.modules.keys()
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=60).returncode == 0


def test_invalid_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, message in (
        (["--versions", "0"], "--versions must be >= 1, got 0"),
        (["--html", "page.pdf"], "page.pdf"),
        (["--set", "fedbuff.rate_per_s=1", "--set", "fedbuff.concurrency=2"], "concurrency must be unset"),
    ):
        assert main(["simulate", *flags]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
