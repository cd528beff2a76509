"""`lesson sweep --tune --verify`: which differences between archived runs and their repetition are accepted."""

import gzip
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.engines import FakeEngine
from helpers.tuned import FILE, everything, small
from lesson.cli import main
from lesson.experiments.archive import ARCHIVE
from lesson.experiments.run import Run
from lesson.experiments.tuned.rerun import SCHEDULE, Comparison, Rerun, Spread, digest, follows_training, rule_of
from lesson.settings.settings import Settings

Change = Callable[[pd.DataFrame], pd.DataFrame]
THREE = FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]").replace("betas = [0.1, 1.0]", "betas = [1.0]")


def spread_out(settings: Settings) -> list[float]:
    """The final accuracies of seeds 0, 1 and 2 are 60, 61 and 62 %, so S is 1 point."""
    return [0.5] * 5 + [0.6 + 0.01 * (settings.run.seed % 100)] * 3


def changed(run: Run, change: Change, torch: str = "2") -> Run:
    """Return a run with another curve, executed with a version of torch."""
    assert run.archived is not None
    return replace(run, archived=replace(run.archived, curve=change(run.curve.copy()), versions={"torch": torch}))


def compared(folder: Path, change: Change, torch: str = "2", seeds: tuple[int, ...] = (0,)) -> list[Comparison]:
    """Compare the runs of an entry that has not been tuned with repetitions that were changed."""
    design = small(folder, THREE)
    done = everything(design, spread_out)
    [case] = [one for one in design.cases if one.entry.name == "lesson τ=10"]
    runs = [run for run in case.made(done) if run.seed in seeds]
    rerun = Rerun([case], done, {run.name: run.settings for run in runs})
    return rerun.compare(changed(run, change, torch) for run in runs)


def less_accurate(points: float) -> Change:
    return lambda curve: curve.assign(accuracy=curve["accuracy"] - points / 100)


def test_equal_runs_are_identical(tmp_path: Path) -> None:
    told = [(one.told, one.problem, one.identical) for one in compared(tmp_path, lambda curve: curve)]
    assert told == [("identical, 8 evaluations", "", True)]
    assert compared(tmp_path, lambda curve: curve, torch="3")[0].identical


def test_on_the_same_machine_every_number_counts(tmp_path: Path) -> None:
    [one] = compared(tmp_path, less_accurate(0.01))
    assert one.told == "accuracy at evaluation 1 is 0.5 in the archive and 0.4999 here"
    assert one.problem == f"{one.told} although hardware and versions are the same"


def test_elsewhere_accuracies_may_differ_as_two_runs_do(tmp_path: Path) -> None:
    """With t = 4.303 for three seeds, a run alone may differ by t·√2·1 = 6.1 points and the mean of three by 3.5."""
    [one] = compared(tmp_path, less_accurate(5), torch="3")
    assert one.told == (
        "schedule identical, accuracy differs by at most 0.05, the final accuracy differs by 0.05 (0.06085 allowed)"
    )
    assert not one.problem
    *runs, mean = compared(tmp_path, less_accurate(4), torch="3", seeds=(0, 1, 2))
    assert [run.problem for run in runs] == ["", "", ""]
    assert runs[0].told == "schedule identical, accuracy differs by at most 0.04, the final accuracy differs by 0.04"
    assert mean.name == "lesson τ=10, β = 1"
    assert mean.problem == "the mean final accuracy differs by 0.04 (0.03513 allowed)"


@pytest.mark.parametrize(("points", "fails"), [(10, False), (11, True)])
def test_of_several_runs_only_the_mean_is_judged(points: float, fails: bool, tmp_path: Path) -> None:
    """A run among three may be off by 3·3.513 = 10.5 points, although one alone may only be off by 6.1."""

    def first_less_accurate(curve: pd.DataFrame) -> pd.DataFrame:
        return less_accurate(points)(curve) if curve["accuracy"].iloc[-1] < 0.605 else curve

    found = compared(tmp_path, first_less_accurate, torch="3", seeds=(0, 1, 2))
    assert [bool(one.problem) for one in found] == [False, False, False, fails]


def test_about_one_in_twenty_commands_fails_if_all_runs_are_independent(tmp_path: Path) -> None:
    """Final accuracies are drawn from a normal distribution, for three seeds at each of two β; 10 should fail."""
    design = small(tmp_path, FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    cases = [one for one in design.cases if one.entry.name == "lesson τ=10"]
    runs = [run for case in cases for run in case.made(everything(design, spread_out))]
    rng = np.random.default_rng(0)

    def drawn(torch: str) -> dict[str, Run]:
        return {
            run.name: changed(run, lambda curve: curve.assign(accuracy=rng.normal(0.6, 0.01)), torch) for run in runs
        }

    commands = (Rerun(cases, drawn("2"), {}).compare(drawn("3").values()) for _ in range(200))
    failed = sum(any(one.problem for one in found) for found in commands)
    assert 4 <= failed <= 17


def test_a_run_that_collapses_only_here_differs(tmp_path: Path) -> None:
    [one] = compared(tmp_path, lambda curve: curve.assign(accuracy=0.1), torch="3")
    assert one.problem == "collapsed in only one of the two runs"


@pytest.mark.parametrize(
    ("column", "more", "problem"),
    [
        ("uploads", 1, "uploads at evaluation 1 is 10 in the archive and 11 here"),
        ("round", 1, "round at evaluation 1 is 5 in the archive and 6 here"),
        ("time_s", 0.002, "time_s at evaluation 1 is 100.0 in the archive and 100.002 here"),
        ("time_s", 0.001, ""),
        ("energy_j", 0.001, ""),
        ("energy_j", 0.1, "energy_j at evaluation 1 is 2500.0 in the archive and 2500.1 here"),
    ],
)
def test_elsewhere_the_schedule_must_be_the_same_up_to_rounding(
    column: str, more: float, problem: str, tmp_path: Path
) -> None:
    [one] = compared(tmp_path, lambda curve: curve.assign(**{column: curve[column] + more}), torch="3")
    assert one.problem == problem
    assert not one.identical


def test_a_curve_of_another_length_differs(tmp_path: Path) -> None:
    [one] = compared(tmp_path, lambda curve: curve[:-1], torch="3")
    assert one.problem == "round has 8 values in the archive and 7 here"


def test_archives_of_earlier_versions_lack_the_final_evaluation(tmp_path: Path) -> None:
    """Made-up runs have no `bytes_up` in their summary, as such archives."""
    [one] = compared(tmp_path, lambda curve: pd.concat([curve, curve[-1:] + 1]), torch="3")
    assert (one.told, one.identical) == ("identical, 8 evaluations", True)


def test_two_seeds_have_no_spread() -> None:
    assert math.isnan(Spread([0.5, 0.6], 800.0).allowed(1))
    assert Spread([0.6, 0.7, 0.8], 800.0).allowed(2) == pytest.approx(0.43027, rel=1e-4)


def test_several_betas_share_the_false_alarms() -> None:
    """The 98.75 % quantile of Student's distribution with two degrees of freedom is 6.2053."""
    assert Spread([0.6, 0.7, 0.8], 800.0, num_checks=2).allowed(2) == pytest.approx(0.62053, rel=1e-4)


def test_the_schedule_of_a_strategy_that_reads_signals_depends_on_the_training(tmp_path: Path) -> None:
    assert not follows_training(Settings())
    assert follows_training(Settings(strategy={"name": "tifl"}))
    assert follows_training(Settings(guards={"norm": "reject"}))
    run = next(iter(everything(small(tmp_path), spread_out).values()))
    told = rule_of(run, changed(run, lambda curve: curve, torch="3"))
    assert told.startswith("torch is 2 in the archive and 3 here: the schedule must be identical, and the mean ")
    assert told.endswith("as much as that of independent runs, which would fail in about 5 % of commands")
    assert rule_of(run, run) == "same hardware and versions: every number must be identical"


def test_digests_of_the_schedule_and_of_all_columns(tmp_path: Path) -> None:
    runs = list(everything(small(tmp_path), spread_out).values())[:2]
    worse = [changed(run, less_accurate(1)) for run in runs]
    assert digest(runs) == digest(runs[::-1]) != digest(worse)
    assert digest(runs, SCHEDULE) == digest(worse, SCHEDULE) != digest(runs[:1], SCHEDULE)


def test_the_command_verifies_an_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lesson.cli.sweep.SweepCommand._engine", lambda _: FakeEngine())
    small(tmp_path)
    out = tmp_path / "out"
    command = ["sweep", str(tmp_path / "entries.toml"), "--tune", "--out", str(out)]
    assert main([*command, "--verify", "lesson τ=10"]) == 2
    assert main([*command, "--entries", "lesson τ=10"]) == 0
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main([*command, "--verify", "lesson τ=10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1][:9] for line in lines[:4]] == ["identical"] * 4
    assert lines[4:] == [
        "rule: same hardware and versions: every number must be identical",
        f"verified: 'lesson τ=10' agrees with {out}: 4 runs, 4 identical",
    ]
    assert (
        main(["sweep", str(out / "study.toml"), "--tune", "--verify", "lesson τ=10", "--beta", "1", "--seed", "0"]) == 0
    )
    assert "1 run, 1 identical" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == kept

    archive = out / ARCHIVE
    archive.write_bytes(gzip.compress(gzip.decompress(archive.read_bytes()).replace(b'"uploads": [', b'"uploads": [9')))
    assert main([*command, "--verify", "lesson τ=10"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"lesson: 'lesson τ=10' differs from {out}: 4 of 4 checks failed, first lesson-")
    assert "uploads at evaluation 1 is 9" in error
    assert error.endswith("study.toml lists the commits")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tune", "--verify", "fedavgg"], "unknown entry 'fedavgg'; did you mean 'fedavg'"),
        (["--tune", "--verify", "fedavg"], "'fedavg' is incomplete in "),
        (["--tune", "--verify", "fedavg", "--beta", "2"], "--beta must be one of 0.1, 1, got 2"),
        (["--tune", "--verify", "fedavg", "--seed", "9"], "--seed must be one of 0, 1, 2, 3, 4, got 9"),
        (["--tune", "--verify", "fedavg", "--entries", "fedavg"], "--entries cannot be combined with --verify"),
        (["--tune", "--seed", "0"], "--seed requires --verify"),
        (["--verify", "fedavg"], "--verify requires --tune"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--tune", "--seconds", "0", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["sweep", *words, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
