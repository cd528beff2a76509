import tomllib

import pytest

from lesson.core.errors import InputError
from lesson.experiments.naming import run_name, series_name
from lesson.paper.items import NAMES, ON_REQUEST, load_item, select_items, wanted_runs
from lesson.paper.scale import FULL, QUICK
from lesson.settings.settings import Settings


def test_series_are_named_after_what_differs_from_the_preset() -> None:
    sections = {
        "data": {"beta": 0.1, "dataset": "cifar10"},
        "strategy": {"deadline_s": 10.0},
        "training": {"learning_rate": 0.02},
    }
    assert series_name(Settings(**sections)) == "lesson-cifar10-deadline_s=10-beta=0.1-learning_rate=0.02"
    sections = {"preset": "printed", "strategy": {"name": "fedavg"}, "run": {"seed": 3}}
    assert run_name(Settings(**sections)) == "fedavg-mnist-printed-seed3"
    sections = {"server": {"optimizer": "adam"}}
    assert series_name(Settings(**sections)) == "lesson-mnist-optimizer=adam"
    sections = {"preset": "printed", "training": {"lr_cap": 1.0}, "strategy": {"late": "drop"}}
    assert series_name(Settings(**sections)) == "lesson-mnist-printed-lr_cap=1-late=drop"


@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
@pytest.mark.parametrize("name", NAMES)
def test_every_series_an_item_shows_is_one_it_runs(name: str, scale) -> None:
    item = load_item(name)
    run = {name.rpartition("-seed")[0] for name in item.settings(scale)}
    shown = {scale.series(series) for panel in item.panels for series in panel["lines"].values()}
    if name == "authors":
        ends = {"0.1": "", "0.02": "-learning_rate=0.02"}
        for row in item.rows:
            shown |= {scale.series(row["series"] + ends[rate]) for rate in row.get("step_sizes", ends)}
    if name == "sawtooth":
        shown = {scale.series(row["series"]) for row in item.rows}
    if name in ("choices", "margins", "mnist"):
        for row in item.rows:
            strategies = row.get(
                "strategies", ["lesson", "fedavg"] if name == "margins" else ["lesson", "fedavg", "fedcs"]
            )
            shown |= {scale.series(f"{strategy}-{row['series']}") for strategy in strategies}
    assert shown <= run
    assert bool(shown) == bool(run)


def test_tier_1_is_never_empty_under_released_unless_an_item_says_so() -> None:
    for name, settings in wanted_runs(select_items(["all"]), FULL).items():
        expected = settings.preset == "released" and "ensure_first_tier=false" not in name
        assert settings.strategy.ensure_first_tier == expected, name


def test_every_item_is_one_of_the_files() -> None:
    assert {path.stem for path in load_item("fig5").path.parent.iterdir()} == set(NAMES)
    assert all(tomllib.loads(load_item(name).path.read_text())["title"] for name in NAMES)


@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
def test_items_that_share_a_run_differ_in_its_length_only(scale) -> None:
    everything = wanted_runs(select_items(["all"]), scale)
    for name in NAMES:
        for run, settings in load_item(name).settings(scale).items():
            allowed = [f"run.rounds = {everything[run].run.rounds} there, {settings.run.rounds} here"]
            assert settings.differences(everything[run]) in ([], allowed), (name, run)
            assert (settings.run.rounds or 0) <= (everything[run].run.rounds or 0)


def test_a_run_is_as_long_as_the_longest_item_asks_for() -> None:
    wanted = wanted_runs([load_item("fig5")], FULL)
    assert len(wanted) == 2 * 3 * 5
    assert wanted["lesson-cifar10-seed0"].run.rounds == 10_000  # for Fig. 8
    assert wanted["fedavg-cifar10-seed4"].run.rounds == 5000


def test_a_quick_look_is_short_and_on_mnist() -> None:
    for settings in wanted_runs(select_items(["all"]), QUICK).values():
        assert settings.data.dataset == "mnist"
        assert settings.run.seed < 2
        assert (settings.run.rounds or 0) <= 60
        assert settings.run.rounds or settings.run.time_budget_s <= 600


def test_items_are_in_the_order_of_the_paper_and_unknown_ones_are_rejected() -> None:
    assert [item.name for item in select_items(["fig5", "table2"])] == ["table2", "fig5"]
    assert [item.name for item in select_items(["all"])] == list(NAMES)
    assert [item.name for item in select_items([])] == [name for name in NAMES if name not in ON_REQUEST]
    with pytest.raises(InputError, match="unknown item 'fig10'; did you mean 'fig"):
        select_items(["fig5", "fig10"])
