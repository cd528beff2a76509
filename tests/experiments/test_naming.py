"""Names of runs. One function names the runs of all designs."""

import math
from pathlib import Path
from typing import Any

import pytest

from helpers.tuned import small
from lesson.experiments.grid import make_grid
from lesson.experiments.naming import MAX_NAME, run_name, series_name, short_name
from lesson.paper.base import base_settings
from lesson.paper.items import load_item, wanted_runs
from lesson.paper.scale import FULL
from lesson.settings.settings import Settings, section_of


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "lesson-mnist-seed0"),
        ({"dataset": "cifar10", "seed": 7, "rounds": 3, "eval_every_s": 20.0}, "lesson-cifar10-seed7"),
        ({"preset": "printed", "beta": 0.1}, "lesson-mnist-printed-beta=0.1-seed0"),
        (
            {"strategy": {"name": "fedavg", "fraction": 0.5}, "training": {"learning_rate": 0.2}},
            "fedavg-mnist-fraction=0.5-learning_rate=0.2-seed0",
        ),
        ({"deadline_s": math.inf, "noise_dbm": -94.0}, "lesson-mnist-noise_dbm=-94-deadline_s=inf-seed0"),
        (
            {"server": {"learning_rate": 0.5, "optimizer": "adam"}},
            "lesson-mnist-optimizer=adam-server.learning_rate=0.5-seed0",
        ),
        ({"faults": {"nan": 0.25}, "guards": {"norm": "clip"}}, "lesson-mnist-nan=0.25-norm=clip-seed0"),
    ],
)
def test_a_name_lists_what_differs_from_the_preset(settings: dict[str, Any], name: str) -> None:
    """[run] does not distinguish runs; a section is named where [training] or another has the same setting."""
    assert run_name(Settings(**settings)) == name
    assert series_name(Settings(**settings)) == name.rpartition("-seed")[0]


@pytest.mark.parametrize(
    ("axes", "name"),
    [
        ({"strategy.ensure_first_tier": [True]}, "lesson-ensure_first_tier=true-seed0"),
        ({"fleet.cpu_hz": [[0.8e9, 3e9]]}, "lesson-cpu_hz=800000000_3000000000-seed0"),
        ({"strategy.deadline_s": [math.inf], "radio.noise_dbm": [-94]}, "lesson-deadline_s=inf-noise_dbm=-94-seed0"),
        ({"data.dataset": ["cifar10"], "data.beta": [1]}, "lesson-cifar10-beta=1-seed0"),
    ],
)
def test_a_sweep_names_what_varies_in_its_order(axes: dict[str, Any], name: str) -> None:
    grid = make_grid({}, axes)
    assert list(grid.trials) == [name]
    assert [run_name(settings, axes) for settings in grid.trials.values()] == [name]


def test_short_names_are_those_that_only_one_section_has() -> None:
    assert short_name("data.beta") == "beta"
    assert short_name("strategy.name") == "strategy"
    assert (short_name("training.learning_rate"), short_name("server.learning_rate")) == (
        "learning_rate",
        "server.learning_rate",
    )


def test_long_names_are_cut_and_stay_different() -> None:
    keys = ["power_w", "noise_dbm", "bandwidth_hz", "model_bits", "path_loss_1km_db", "path_loss_slope_db", "area_km"]
    names = list(make_grid({}, {f"{section_of(key)}.{key}": [1 / 3, 2 / 3] for key in keys}).trials)
    assert len(set(names)) == 2 ** len(keys)
    assert MAX_NAME < max(map(len, names)) <= MAX_NAME + 9


def test_a_custom_strategy_has_no_colon_in_its_folder_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_for_grid.py").write_text("from lesson import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    assert list(make_grid({}, {"strategy.name": ["own_for_grid:Mine"]}).trials) == ["own_for_grid.Mine-seed0"]
    assert run_name(Settings(name="own_for_grid:Mine")) == "own_for_grid.Mine-mnist-seed0"


def test_the_runs_of_all_archived_designs_have_the_same_kind_of_name(tmp_path: Path) -> None:
    runs, of_paper = small(tmp_path).runs({}), wanted_runs([load_item("limits")], FULL)
    assert {name: run_name(settings) for name, settings in runs.items()} == {name: name for name in runs}
    assert {name: run_name(settings, usual=base_settings()) for name, settings in of_paper.items()} == {
        name: name for name in of_paper
    }
