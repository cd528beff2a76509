"""The command `lesson sweep --tune`."""

from pathlib import Path

import pytest

from helpers.engines import FakeEngine
from helpers.tuned import FILE, small
from lesson import load
from lesson.cli import main
from lesson.experiments.folder import MARKER, StudyFolder
from lesson.experiments.tuned.study import TunedStudy

pytestmark = pytest.mark.usefixtures("few_test_images")
TINY = (
    FILE.replace("tuning_s = 400.0", "tuning_s = 80.0")
    .replace("final_s = 800.0", "final_s = 120.0")
    .replace("eval_every_s = 100.0", "eval_every_s = 20.0")
    .replace("looks_s = [400.0, 800.0]", "looks_s = [60.0, 120.0]")
    .replace("betas = [0.1, 1.0]", "betas = [1.0]")
    .replace("seeds = [0, 1]", "seeds = [0]")
)


@pytest.mark.slow
def test_the_command_tunes_runs_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(1))  # one other process, not two
    small(tmp_path, TINY)
    out = tmp_path / "out"
    command = ["sweep", str(tmp_path / "entries.toml"), "--tune", "--entries", "lesson,lesson τ=10", "--out", str(out)]
    assert main([*command, "--seconds", "0"]) == 0
    assert "lesson: 3 runs missing\nlesson τ=10: 1 run missing\n" in capsys.readouterr().out
    assert not list(out.glob("*/"))
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "strategies, β = 1, one seed" in shown
    assert "fedavg: 5 runs missing\nlesson τ=20: " in shown
    kept = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert {"README.md", MARKER, "runs.jsonl.gz", "accuracy-strategies.png", "times-deadlines.png"} <= kept.keys()
    study = load(out)
    assert isinstance(study, TunedStudy)
    assert {run.curve["time_s"].iloc[-1] for run in study.runs} == {120.0}
    assert all((run.curve["energy_j"].diff().dropna() > 0).all() for run in study.runs)
    marker = StudyFolder(out).read()
    assert marker is not None
    assert sum(made.runs for made in marker.provenance) == len(study.done)
    assert main(command) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == kept


def test_many_missing_entries_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file, the default comparison; `--seconds 0` only draws."""
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "--tune", "--seconds", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "fedavg: 22 runs missing"
    assert lines[10].endswith("more entries; repeat the command to continue")
    assert sorted(path.name for path in Path("runs/strategies").iterdir()) == [
        "README.md",
        "settings.md",
        MARKER,
        "table.csv",
    ]


def test_a_folder_is_of_one_kind_of_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned, paper = tmp_path / "tuned", tmp_path / "paper"
    assert main(["sweep", "--tune", "--seconds", "0", "--out", str(tuned)]) == 0
    assert main(["reproduce", "table1", "--out", str(paper)]) == 0
    assert main(["reproduce", "table1", "--out", str(tuned)]) == 2
    assert main(["compare", "--out", str(tuned)]) == 2
    assert main(["compare", "--out", str(paper)]) == 2
    assert main(["sweep", "--tune", "--seconds", "0", "--out", str(paper)]) == 2
    other = "choose another output folder"
    assert capsys.readouterr().err.splitlines() == [
        f"lesson: {tuned} holds a tuned comparison, not a reproduction; {other}",
        f"lesson: {tuned} holds a tuned comparison, not a comparison; {other}",
        f"lesson: {paper} holds a reproduction, not a comparison; {other}",
        f"lesson: {paper} holds a reproduction, not a tuned comparison; {other}",
    ]


def test_runs_by_other_rules_are_not_mixed_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another number of seeds is no reason: runs that are there are used."""
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: FakeEngine())
    command = [
        "sweep",
        str(tmp_path / "entries.toml"),
        "--tune",
        "--entries",
        "lesson τ=10",
        "--out",
        str(tmp_path / "out"),
    ]
    small(tmp_path)
    assert main(command) == 0
    small(tmp_path, FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    assert main(command) == 0
    assert sum(path.is_dir() for path in (tmp_path / "out").iterdir()) == 2 * 3
    small(tmp_path, TINY)
    assert main(command) == 2
    assert "with other settings (run.time_budget_s = 800.0 there, 120.0 here)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tune", "--entries", "fedavgg"], "unknown entry 'fedavgg'; did you mean 'fedavg'"),
        (["--tune", "--seconds", "-1"], "--seconds must be >= 0, got -1"),
        (["--tune", "--seconds", "nan"], "--seconds must be >= 0, got nan"),
        (["--tune", "nowhere.toml"], "nowhere.toml does not exist; a tuned comparison is a file with [rules]"),
        (["--tune", "--set", "beta=1"], "--set cannot be combined with --tune: the file has the settings of every"),
        (["--entries", "lesson", "grid.toml"], "--entries requires --tune"),
        ([], "SETTINGS.toml must be given: a file with a table [sweep]"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
