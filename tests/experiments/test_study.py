"""Studies: filters, frames and tables, of runs in folders and of archived ones."""

import json
import math
from pathlib import Path
from typing import Any

import matplotlib.figure
import pytest

from helpers.run_folders import make_comparison, make_run
from helpers.tuned import everything, made, small
from lesson import InputError, Run, Settings, Study, load
from lesson.experiments.archive import read_archive, write_archive
from lesson.experiments.loading import load_study
from lesson.experiments.study import tell_apart, write_table


def seeds(study: Study) -> list[tuple[str, int]]:
    return [(run.settings.strategy.name, run.seed) for run in study.runs]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LESSON and FedAvg from three seeds, whose accuracies differ by 0.01."""
    out = tmp_path_factory.mktemp("study") / "out"
    make_comparison(out)
    return out


@pytest.fixture(params=["folders", "archive"])
def study(request: pytest.FixtureRequest, compared: Path, tmp_path: Path) -> Study:
    found = load(compared)
    assert isinstance(found, Study)
    if request.param == "folders":
        return found
    write_archive(tmp_path / "runs.jsonl.gz", found.runs)
    archived = load(tmp_path)
    assert isinstance(archived, Study)
    assert {run.path for run in archived.runs} == {None}
    return archived


def test_a_frame_has_one_row_per_run(study: Study) -> None:
    frame = study.to_frame()
    assert frame["strategy"].tolist() == ["fedavg"] * 3 + ["lesson"] * 3
    assert frame["seed"].tolist() == [0, 1, 2] * 2
    assert frame["accuracy"].tolist() == pytest.approx([0.9, 0.91, 0.92] * 2)
    assert frame["time_to_0.6"].tolist() == [400.0, 400.0, 400.0] * 2  # (0.5 + 0.6 + 0.7) / 3
    assert frame["time_to_0.95"].isna().all()


def test_curves_have_one_row_per_evaluation(study: Study) -> None:
    curves = study.curves()
    assert list(curves) == ["strategy", "seed", "round", "time_s", "accuracy", "loss", "uploads", "energy_j"]
    one = curves[(curves["strategy"] == "lesson") & (curves["seed"] == 1)]
    assert one["accuracy"].tolist() == pytest.approx([0.31, 0.51, 0.61, 0.71, 0.81, 0.91])
    assert one["uploads"].tolist() == [4, 8, 12, 16, 20, 24]
    assert one["energy_j"].iloc[-1] == 300.0


def test_a_table_has_means_extremes_and_intervals(study: Study) -> None:
    """0.9, 0.91, 0.92: half the interval is 4.3027 · 0.01 / √3 = 0.02484."""
    table = study.table()
    assert list(table.index) == ["fedavg", "lesson"]
    row = table.loc["lesson"]
    assert (row["accuracy_last10"], row["accuracy_last10_ci95"]) == pytest.approx((0.91, 0.02484), rel=1e-3)
    assert (row["accuracy_last10_min"], row["accuracy_last10_max"]) == pytest.approx((0.9, 0.92))
    assert (row["uploads"], row["energy_j"], row["time_to_0.6_seeds"], row["time_to_0.95_seeds"]) == (24, 300.0, 3, 0)
    assert math.isnan(row["time_to_0.95"])


def test_a_study_is_drawn_and_shown(study: Study) -> None:
    for by in ("time", "round"):
        assert isinstance(study.plot(by), matplotlib.figure.Figure)  # type: ignore[arg-type]
    assert repr(study) == "Study(6 runs, 3 seeds, by strategy)"
    assert "fedavg" in study._repr_html_()


def test_a_table_is_written_as_strict_json(study: Study, tmp_path: Path) -> None:
    write_table(study, tmp_path / "table.json")
    table = json.loads((tmp_path / "table.json").read_text(), parse_constant=pytest.fail)
    assert (list(table), table["lesson"]["time_to_0.95"]) == (["fedavg", "lesson"], None)


def test_archived_runs_without_bytes_or_energy_have_a_table(tmp_path: Path) -> None:
    """As those of version 0.2, whose lines have only a curve."""
    runs = [made(Settings(seed=seed, rounds=50), [0.5] * 4) for seed in range(3)]
    assert math.isnan(tell_apart(runs, {}).table()["bytes_up"].iloc[0])
    write_archive(tmp_path / "runs.gz", runs)
    table = tell_apart(read_archive(tmp_path / "runs.gz"), {}).table()
    assert (table["accuracy_last10"].iloc[0], table["seeds"].iloc[0]) == (0.5, 3)


@pytest.fixture(scope="module")
def varied() -> Study:
    """β = 0.1 and 1 from two seeds; LESSON drops late updates in one run, FedAvg does not know the option."""
    parts: list[dict[str, Any]] = [
        {"data": {"beta": beta}, "strategy": strategy, "run": {"seed": seed, "rounds": 50}}
        for strategy in ({"name": "lesson", "late": "drop"}, {"name": "lesson"}, {"name": "fedavg"})
        for beta in (0.1, 1.0)
        for seed in (0, 1)
    ]
    runs = [made(Settings(**one, fleet={"cpu_hz": (1e9, 2e9)}), [0.5] * 4) for one in parts]
    return Study(runs, ("strategy.name", "data.beta", "strategy.late"), {"x": "it broke"})


@pytest.mark.parametrize(
    ("conditions", "num_runs"),
    [
        ({}, 12),
        ({"strategy": "lesson"}, 8),
        ({"strategy": "lesson", "beta": 0.1, "seed": 1}, 2),
        ({"beta": [0.1, 0.5]}, 6),
        ({"seed": range(1, 5)}, 6),
        ({"beta": lambda beta: beta > 0.5}, 6),
        ({"data.beta": 1.0}, 6),
        ({"late": "drop"}, 4),
        ({"strategy.late": None}, 8),
        ({"late": lambda late: late is None}, 8),
        ({"cpu_hz": (1e9, 2e9)}, 12),
        ({"cpu_hz": [[1e9, 2e9], [1e9, 3e9]]}, 12),
        ({"training.learning_rate": 0.1}, 12),
        ({"strategy": "tifl"}, 0),
    ],
)
def test_filters(conditions: dict[str, Any], num_runs: int, varied: Study) -> None:
    found = varied.filter(**conditions)
    assert len(found.runs) == num_runs
    assert (found.by, found.failures) == (varied.by, {})
    assert len(found.table()) == len(found.groups())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bet", "unknown setting 'bet'; did you mean 'beta'?"),
        ("learning_rate", r"learning_rate is a setting of \[training\] and \[server\]; use training"),
        ("date.beta", "unknown section 'date'; did you mean 'data'?"),
        ("data.bet.a", r"\[data\] unknown setting 'bet.a'"),
        ("strategy.deadline", r"\[strategy\] unknown setting 'deadline'"),
        ("data.bet", r"\[data\] unknown setting 'bet'; did you mean 'beta'?"),
    ],
)
def test_an_unknown_name_is_an_error(name: str, reason: str, varied: Study) -> None:
    with pytest.raises(InputError, match=reason):
        varied.filter(**{name: 1})


def test_runs_of_a_tuned_comparison_are_filtered_by_their_labels(tmp_path: Path) -> None:
    """The table has the rows of what is left, with the same numbers."""
    design = small(tmp_path)
    study = design.study(everything(design, lambda one: [0.1, *[0.8] * 7]), {})
    some = study.filter(entry="lesson", beta=1.0)
    assert [run.seed for run in some.runs] == [0, 1]
    whole = study.table()
    kept = whole[(whole["entry"] == "lesson") & (whole["beta"] == 1.0)].reset_index(drop=True)
    assert some.table().equals(kept)
    one = study.filter(seed=1, entry="lesson").table()
    assert (one["seeds"].tolist(), one["time_ratio"].tolist()) == ([1, 1], [1.0, 1.0]), "not of this seed alone"
    assert set(study.filter(group="deadlines").table()["entry"]) == {"lesson τ=10", "lesson τ=20"}
    assert repr(some) == "TunedStudy(2 runs, 2 seeds, by entry, group, data.beta)"


def test_runs_are_told_apart_by_as_few_settings_as_possible(tmp_path: Path) -> None:
    """By β once, not by the batch size that goes with it; the trainer does not matter."""
    runs = []
    for beta, batch, trainer in ((0.1, 10, "auto"), (1.0, 20, "reference")):
        for name in ("lesson", "fedavg"):
            parts = {"training": {"batch_size": batch}, "data": {"beta": beta}, "run": {"trainer": trainer}}
            make_run(tmp_path / f"{beta}-{name}", strategy={"name": name}, **parts)
            runs.append(Run.load(tmp_path / f"{beta}-{name}"))
    study = tell_apart(runs, {})
    assert study.by == ("strategy.name", "training.batch_size")
    assert len(study.groups()) == 4
    assert tell_apart(runs[:2], {}).by == ("strategy",)


def test_the_same_run_twice_is_rejected(tmp_path: Path) -> None:
    """The interval of a mean would be too narrow."""
    for name in ("a", "b"):
        make_run(tmp_path / name)
    with pytest.raises(InputError, match=r"a and .*b are the same run; give only one of them"):
        load_study([tmp_path / "a", tmp_path / "b"])
    run = made(Settings(rounds=50), [0.5])
    with pytest.raises(InputError, match=r"^lesson-mnist-seed0 and lesson-mnist-seed0 are the same run"):
        tell_apart([run, made(run.settings, [0.5])], {})


def test_failures_are_counted_by_strategy(tmp_path: Path) -> None:
    """Also those of a strategy all of whose runs failed."""
    failures = {"lesson-seed1": "it broke", "fedcs-seed0": "no data"}
    study = Study([made(Settings(rounds=50), [0.5])], failures=failures)
    assert study.failures_by_strategy() == {
        "lesson": {"lesson-seed1": "it broke"},
        "fedcs": {"fedcs-seed0": "no data"},
    }
    write_table(study, tmp_path / "table.json")
    table = json.loads((tmp_path / "table.json").read_text())
    assert (table["fedcs"]["seeds"], table["fedcs"]["failures"]) == (0, {"fedcs-seed0": "no data"})
    assert table["lesson"]["failures"] == {"lesson-seed1": "it broke"}


def test_a_study_without_runs_is_empty() -> None:
    empty = Study([])
    assert len(empty.to_frame()) == len(empty.curves()) == len(empty.table()) == 0
