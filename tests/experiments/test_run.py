"""A finished run, from its folder and from an archive."""

import json
import math
from pathlib import Path

import matplotlib.figure
import pandas as pd
import pytest

from helpers.run_folders import ACCURACY, begin_run, make_run
from helpers.runs import PARTS, settings
from helpers.tuned import made
from lesson import Run, Settings
from lesson.experiments.archive import read_archive, write_archive
from lesson.experiments.run import clients_of, curve_of, summary_of
from lesson.runs.execute import execute


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was trained; its last round is not evaluated, but its final model is."""
    path = tmp_path_factory.mktemp("runs") / "trained"
    execute(settings(rounds=7, eval_every_s=40.0, client_scores_every_s=60.0), path, **PARTS)
    return Run.load(path)


def archived(run: Run, folder: Path) -> Run:
    write_archive(folder / "runs.gz", [run])
    return read_archive(folder / "runs.gz")[0]


def test_curve_has_running_totals_and_the_final_score(run: Run) -> None:
    rounds = run.to_frame()
    assert list(run.curve) == ["round", "time_s", "accuracy", "loss", "uploads", "bytes_up", "energy_j"]
    assert len(rounds) == 7
    assert run.curve["round"].iloc[-1] == 7
    assert run.curve["accuracy"].iloc[-1] == pytest.approx(run.summary["accuracy"], abs=1e-4)
    assert run.curve["uploads"].tolist() == [rounds["uploads"][:last].sum() for last in run.curve["round"]]
    assert run.curve["energy_j"].iloc[-1] == pytest.approx(rounds["energy_j"].sum(), abs=1e-3)
    assert run.up_to(4)["round"].max() <= 4


def test_evaluations_on_clients(run: Run) -> None:
    lines = [line for line in run.lines if "client_loss" in line]
    assert run.clients["round"].tolist() == [line["round"] for line in lines]
    assert run.clients["global_loss"].tolist() == pytest.approx([line["global_loss"] for line in lines], abs=1e-5)
    assert {"accuracy_tier1", "accuracy_others"} & set(run.clients)
    assert clients_of([{"round": 1}], run.settings).empty


def test_archived_run_equals_its_folder(run: Run, tmp_path: Path) -> None:
    back = archived(run, tmp_path)
    assert (back.name, back.seed, back.settings, back.sections) == (run.name, run.seed, run.settings, run.sections)
    assert back.versions == run.versions
    assert back.versions["torch"]
    pd.testing.assert_frame_equal(back.curve, run.curve)
    pd.testing.assert_frame_equal(back.clients, run.clients)
    frame = back.to_frame()  # evaluated rounds only, with what was spent since the one before
    assert frame["round"].tolist() == run.curve["round"].tolist()
    assert frame["uploads"].sum() == run.summary["uploads"]
    assert frame["energy_j"].sum() == pytest.approx(run.summary["energy_j"], abs=1e-3)
    assert (back.read_clients(), bool(run.read_clients())) == ({}, True)
    for each in (back, run):
        assert isinstance(each.plot(), matplotlib.figure.Figure)
        assert "lesson" in each._repr_html_()


def test_diverged_run_keeps_its_curve_and_counts_as_guessing(tmp_path: Path) -> None:
    for name in ("done", "lost"):
        make_run(tmp_path / name)
    (tmp_path / "lost" / "summary.json").unlink()
    lost = Run.load_diverged(tmp_path / "lost", "no longer finite")
    assert lost.curve["accuracy"].tolist() == list(ACCURACY)
    assert (lost.summary["accuracy"], lost.summary["accuracy_last10"]) == (0.1, 0.1)
    assert lost.summary["time_to_s"] == Run.load(tmp_path / "done").summary["time_to_s"], "reached before"
    assert (lost.summary["rounds"], lost.summary["uploads"], lost.summary["ended_early"]) == (6, 24, "no longer finite")
    begin_run(tmp_path / "at_once", Settings())
    nothing = Run.load_diverged(tmp_path / "at_once", "no longer finite")
    assert nothing.curve.empty
    assert (nothing.summary["rounds"], nothing.summary["time_s"], nothing.summary["energy_j"]) == (0, 0.0, None)
    assert archived(nothing, tmp_path).summary == nothing.summary


def test_summary_by_hand() -> None:
    """Means of three: 0.4, 0.5, 0.6 at 300, 400 and 500 s; the last fourth of five evaluations is one."""
    run = made(Settings(rounds=50), [0.3, 0.4, 0.5, 0.6, 0.7])
    found = summary_of(run.settings, run.curve, "")
    assert (found["accuracy"], found["accuracy_last10"], found["rounds"], found["time_s"]) == (0.7, 0.7, 25, 500.0)
    assert found["time_to_s"] == {"0.5": 400.0, "0.6": 500.0, "0.7": None, "0.8": None, "0.9": None, "0.95": None}
    assert found["energy_j"] == 12500.0


def test_energy_is_in_a_curve_if_every_round_knows_it(tmp_path: Path) -> None:
    lines = [{"round": 1, "time_s": 1.0, "uploads": 2, "accuracy": 0.5, "energy_j": joules} for joules in (1.0, 2.5)]
    assert curve_of(lines)["energy_j"].tolist() == [1.0, 3.5]
    assert list(curve_of([*lines, lines[0] | {"energy_j": None}])) == ["round", "time_s", "accuracy", "uploads"]
    make_run(tmp_path / "run", joules=None)
    back = list(archived(Run.load(tmp_path / "run"), tmp_path).lines)
    assert json.loads(json.dumps(back, allow_nan=False)) == back, "not strict JSON"
    assert [line["energy_j"] for line in back] == [None] * 6
    assert not any(math.isnan(line["loss"]) for line in back)
