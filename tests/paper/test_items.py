"""Tables and figures of the paper: which runs they need."""

import pytest

from lesson.core.errors import InputError
from lesson.paper.items import NAMES, ON_REQUEST, load_item, select_items, wanted_runs
from lesson.paper.scale import FULL, QUICK
from lesson.report.paper.tables import parameters_table
from lesson.settings.presets import PRINTED


@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
def test_figures_run_every_series_they_show(scale) -> None:
    for name in NAMES:
        item = load_item(name)
        run = {name.rpartition("-seed")[0] for name in item.settings(scale)}
        assert {scale.series(series) for panel in item.panels for series in panel["lines"].values()} <= run, name


@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
def test_shared_runs_differ_only_in_length(scale) -> None:
    everything = wanted_runs(select_items(["all"]), scale)
    for name in NAMES:
        for run, settings in load_item(name).settings(scale).items():
            allowed = [f"run.rounds = {everything[run].run.rounds} there, {settings.run.rounds} here"]
            assert settings.differences(everything[run]) in ([], allowed), (name, run)
            assert (settings.run.rounds or 0) <= (everything[run].run.rounds or 0)


def test_tier_1_is_empty_only_on_request() -> None:
    for name, settings in wanted_runs(select_items(["all"]), FULL).items():
        expected = settings.preset == "released" and "ensure_first_tier=false" not in name
        assert settings.strategy.ensure_first_tier == expected, name


def test_run_is_as_long_as_the_longest_item_needs() -> None:
    wanted = wanted_runs([load_item("fig5")], FULL)
    assert len(wanted) == 2 * 3 * 5
    assert wanted["lesson-cifar10-seed0"].run.rounds == 10_000  # for Fig. 8
    assert wanted["fedavg-cifar10-seed4"].run.rounds == 5000


def test_quick_look_is_short_and_on_mnist() -> None:
    for settings in wanted_runs(select_items(["all"]), QUICK).values():
        assert settings.data.dataset == "mnist"
        assert settings.run.seed < 2
        assert (settings.run.rounds or 0) <= 60
        assert settings.run.rounds or settings.run.time_budget_s <= 600


def test_items_are_in_the_order_of_the_paper() -> None:
    assert [item.name for item in select_items(["fig5", "table2"])] == ["table2", "fig5"]
    assert [item.name for item in select_items(["all"])] == list(NAMES)
    assert [item.name for item in select_items([])] == [name for name in NAMES if name not in ON_REQUEST]
    with pytest.raises(InputError, match="fig10"):
        select_items(["fig5", "fig10"])


def test_table_of_parameters_lists_differences_between_presets() -> None:
    rows = {setting: (paper, *presets) for _, setting, paper, *presets in parameters_table().cells}
    of_preset = {f"{section}.{name}" for section, values in PRINTED.items() for name in values}
    different = {setting for setting, (_, printed, released) in rows.items() if printed != released}
    assert different == of_preset | {"strategy.ensure_first_tier"}
    assert rows["radio.power_w"] == ("1 W", "1 W", "0.1 W")
    assert rows["radio.noise_dbm"] == ("-94 dBm", "-94 dBm", "-100 dBm")
    assert rows["fleet.cycles_per_sample"] == ("U(3, 5)·10^5", "U(3, 5)·10^5", "U(3, 5)·10^8")
    assert rows["training.lr_cap"] == ("not mentioned", "none", "1")
