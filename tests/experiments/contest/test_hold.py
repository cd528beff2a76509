"""A contest in its folder: what is missing is made, in pieces if need be, and nothing twice."""

import json
import math
import time
from functools import partial
from pathlib import Path

import pytest

from helpers.contests import FILE, everything, made, small
from lesson.cli import main
from lesson.cli.many import make_missing
from lesson.core.errors import InputError, RunStoppedError
from lesson.experiments.contest.cases import Runs, cases_of
from lesson.experiments.contest.hold import claim_folder, hold
from lesson.experiments.engines import LocalEngine
from lesson.experiments.missing import run_missing
from lesson.experiments.results import Results
from lesson.runs.folder import RunFolder
from lesson.settings.settings import Settings

TINY = (
    FILE.replace("tuning_s = 400.0", "tuning_s = 80.0")
    .replace("final_s = 800.0", "final_s = 120.0")
    .replace("eval_every_s = 100.0", "eval_every_s = 20.0")
    .replace("looks_s = [400.0, 800.0]", "looks_s = [60.0, 120.0]")
    .replace("betas = [0.1, 1.0]", "betas = [1.0]")
    .replace("seeds = [0, 1]", "seeds = [0]")
)


class Maker:
    """Makes runs up, and notes which; of some names it fails to."""

    def __init__(self, out: Path, failing: str = "nothing") -> None:
        self.out, self.failing, self.asked = out, failing, list[list[str]]()

    def __call__(self, missing: Runs) -> Results:
        self.asked.append(list(missing))
        done = {name: made(one, [0.5] * 8) for name, one in missing.items() if self.failing not in name}
        Results(Results.load(self.out).runs | done).save(self.out)
        if len(done) < len(missing):
            raise RunStoppedError("some failed")
        return Results.load(self.out)


def test_tuning_comes_first_then_runs_of_what_is_tuned(tmp_path: Path) -> None:
    contest = small(tmp_path)
    cases, make = cases_of(contest.select(["fedavg", "deadlines"]), contest.rules), Maker(tmp_path, "fraction=1-")
    results, failed = hold(cases, tmp_path, make)
    assert failed == "some failed"
    tuning, finals = make.asked
    assert [name for name in tuning if not name.endswith("seed100")] == []
    assert len(tuning) == 2 * 4
    assert len(finals) == 2 * 2 * 2  # τ = 10 and 20, which need no tuning
    assert not [name for name in finals if name.startswith("fedavg")]
    again = Maker(tmp_path)
    results, failed = hold(cases, tmp_path, again)
    assert (failed, len(results.runs)) == ("", 8 + 8 + 4)
    assert [len(names) for names in again.asked] == [4, 4]
    hold(cases, tmp_path, third := Maker(tmp_path))
    assert third.asked == [[], []]


def test_entries_that_come_to_the_same_runs_share_them(tmp_path: Path) -> None:
    contest = small(tmp_path)
    results = everything(contest, lambda one: [0.1] * 8)  # a tie: LESSON's first point, τ = 20
    assert sum(run.seed == 0 and run.settings.strategy.name == "lesson" for run in results.runs.values()) == 2 * 2


def test_a_folder_is_of_one_contest(tmp_path: Path) -> None:
    contest, other = small(tmp_path), small(tmp_path, TINY)
    claim_folder(tmp_path / "out", contest.rules)
    claim_folder(tmp_path / "out", contest.rules)
    with pytest.raises(
        InputError, match=r"holds a contest by other rules \(betas = \[0.1, 1.0\], here it is \[1.0\]\)"
    ):
        claim_folder(tmp_path / "out", other.rules)
    (tmp_path / "out" / "rules.json").unlink()
    everything(contest, lambda _: [0.1]).save(tmp_path / "out")
    with pytest.raises(InputError, match="holds runs that are not of a contest"):
        claim_folder(tmp_path / "out", contest.rules)


@pytest.mark.parametrize("text", ["[", "[1, 2]", "3"])
def test_damaged_rules_are_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(text)
    with pytest.raises(InputError, match=r"rules\.json is damaged \(.*\); put back a copy or name another folder"):
        claim_folder(tmp_path, small(tmp_path).rules)


def test_damaged_provenance_is_told_when_only_drawing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "provenance.json").write_text("[{")
    assert main(["contest", "--seconds", "0", "--out", str(tmp_path)]) == 2
    assert "provenance.json is damaged" in capsys.readouterr().err


def test_a_folder_is_of_a_contest_or_of_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contest, paper = str(tmp_path / "contest"), str(tmp_path / "paper")
    assert main(["contest", "--seconds", "0", "--out", contest]) == 0
    assert main(["reproduce", "table1", "--out", paper]) == 0
    assert main(["reproduce", "table1", "--out", contest]) == 2
    for folder in (contest, paper):
        assert main(["compare", "--out", folder]) == 2
    (tmp_path / "compared").mkdir()
    (tmp_path / "compared" / "table.json").touch()
    assert main(["contest", "--seconds", "0", "--out", str(tmp_path / "compared")]) == 2
    assert main(["contest", "--seconds", "0", "--out", paper]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"lesson: {contest} holds a contest; name another folder with --out",
        *(
            f"lesson: {out} holds a contest or the paper's runs; name another folder with --out"
            for out in (contest, paper)
        ),
        f"lesson: {tmp_path / 'compared'} holds runs that are not of a contest; name another folder with --out",
        f"lesson: {paper} holds runs that are not of a contest; name another folder with --out",
    ]


@pytest.mark.slow
def test_runs_stop_at_a_time_with_a_checkpoint(tmp_path: Path) -> None:
    settings = Settings(strategy={"name": "fedcs"}, run={"time_budget_s": 1e9, "eval_every_s": 1e6})
    missing, engine, begun = dict.fromkeys(("a", "b", "c"), settings), LocalEngine(2), set[str]()

    def report(name: str, _: object) -> None:
        begun.add(name)
        if len(begun) == 2 and engine.stop_at_s == math.inf:
            object.__setattr__(engine, "stop_at_s", time.monotonic() + 0.1)

    assert not run_missing(missing, tmp_path, engine, command="", report=report).runs
    folders = [RunFolder(tmp_path / "runs" / name) for name in missing]
    assert [folder.checkpoint.exists() for folder in folders] == [True, True, False]


def test_when_time_is_up_after_tuning_no_more_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contest, engine = small(tmp_path), LocalEngine(stop_at_s=time.monotonic() + 3600)
    make = Maker(tmp_path)

    def tune(missing: Runs, *_: object, **__: object) -> Results:
        object.__setattr__(engine, "stop_at_s", time.monotonic())
        return make(missing)

    monkeypatch.setattr("lesson.experiments.missing.run_missing", tune)
    cases = cases_of(contest.entries, contest.rules)
    results, failed = hold(cases, tmp_path, partial(make_missing, out=tmp_path, engine=engine))
    assert (failed, len(results.runs)) == ("", 2 * (4 + 2))
    assert len(make.asked) == 1
    assert capsys.readouterr().err == f"12 runs to make, in {tmp_path / 'runs'}\n"


@pytest.mark.slow
def test_the_command_makes_tunes_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # one other process, not two
    monkeypatch.setattr("lesson.report.contest.write.FORMATS", (".svg",))
    small(tmp_path, TINY)
    command = ["contest", "lesson", "lesson τ=10", "--out", str(tmp_path / "out")]
    command += ["--file", str(tmp_path / "entries.toml")]
    assert main([*command, "--seconds", "0"]) == 0
    out, error = capsys.readouterr()
    assert "lesson: 3 runs missing\nlesson τ=10: 1 run missing\n" in out
    assert "to make" not in error
    assert not (tmp_path / "out" / "runs").exists()
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "strategies, β = 1, mean" in out
    assert "fedavg: 5 runs missing\nlesson τ=20: " in out
    kept = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert {"README.md", "runs.jsonl", "accuracy-strategies.svg", "times-deadlines.svg"} <= kept.keys()
    finals = [run for run in Results.load(tmp_path / "out").runs.values() if run.seed == 0]
    assert {run.curve["time_s"].iloc[-1] for run in finals} == {120.0}
    assert all((run.curve["energy_j"].diff().dropna() > 0).all() for run in finals)
    notes = json.loads(kept["provenance.json"])
    assert sum(note["runs"] for note in notes) == len(Results.load(tmp_path / "out").runs)
    assert main(command) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()} == kept


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["fedavgg"], "entry 'fedavgg' is unknown; did you mean 'fedavg'"),
        (["--seconds", "-1"], "--seconds must be >= 0, got -1"),
        (["--seconds", "nan"], "--seconds must be >= 0, got nan"),
        (["--file", "nowhere.toml"], "nowhere.toml does not exist; a contest must be a file"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["contest", *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
