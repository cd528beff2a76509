"""Names of runs, which are the names of their folders."""

import math
from typing import Any

import pytest

from lesson.experiments.grid import make_grid
from lesson.experiments.naming import MAX_NAME, run_name, series_name
from lesson.settings.settings import Settings, section_of


@pytest.mark.parametrize(
    ("settings", "name"),
    [
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
    ],
)
def test_name_lists_what_differs_from_the_preset(settings: dict[str, Any], name: str) -> None:
    """[run] does not distinguish runs; a section is named where another one has the same setting."""
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
def test_names_in_a_sweep_list_varied_settings_in_order(axes: dict[str, Any], name: str) -> None:
    assert list(make_grid({}, axes).runs) == [name]


def test_long_names_are_cut_and_stay_different() -> None:
    keys = ["power_w", "noise_dbm", "bandwidth_hz", "model_bits", "path_loss_1km_db", "path_loss_slope_db", "area_km"]
    names = list(make_grid({}, {f"{section_of(key)}.{key}": [1 / 3, 2 / 3] for key in keys}).runs)
    assert len(set(names)) == 2 ** len(keys)
    assert MAX_NAME < max(map(len, names)) <= MAX_NAME + 9
