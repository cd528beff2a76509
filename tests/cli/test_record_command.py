"""`lesson record import` as a user types it."""

from pathlib import Path

import pytest

from lesson.cli import main
from lesson.flight.recording import read_recording


def test_a_log_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text("client,asked_s,arrived_s\npi,3,5\nphone,3,9.5\n")
    assert main(["record", "import", "log.csv"]) == 0
    assert capsys.readouterr().out == "flight.jsonl: 2 jobs of 2 clients in 6.5 s: 2 arrived, 0 failed, 0 open\n"
    assert read_recording("flight.jsonl").jobs.latency_s.tolist() == [2.0, 6.5]
    assert main(["record", "import", "log.csv", "-o", "other.jsonl"]) == 0
    assert Path("other.jsonl").read_text() == Path("flight.jsonl").read_text()


def test_help_shows_the_columns_and_an_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["record", "import", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: lesson record import [OPTIONS] FILE")
    assert "Example: lesson record import log.csv -o flight.jsonl" in shown
    for column in ("client", "asked_s", "arrived_s", "compute_s", "num_samples", "energy_j", "failed_s"):
        assert column in shown
    assert "[default: flight.jsonl]" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["record"], "a command must be given: import; see 'lesson record --help'"),
        (["record", "imprt"], "unknown command 'imprt'; did you mean 'import'? Available: import"),
        (["record", "--out", "x"], "unknown option '--out'"),
        (["record", "import"], "FILE must be given; see 'lesson record import --help'"),
        (["record", "import", "a.csv", "b.csv"], "unexpected argument 'b.csv'; see 'lesson record import --help'"),
        (["record", "import", "a.csv", "--out", "x.csv"], "--out must end in .jsonl, got 'x.csv'"),
        (
            ["record", "import", "none.csv"],
            "none.csv does not exist; a log must be a CSV file with the columns client,",
        ),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_what_is_wrong_is_one_line(
    argv: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"lesson: {problem}")
    assert output.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
