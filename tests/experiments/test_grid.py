import textwrap
from pathlib import Path
from typing import Any

import pytest

from lesson import InputError
from lesson.cli import main
from lesson.experiments.grid import MAX_NAME, load_grid, make_grid
from lesson.settings.settings import section_of

RUN = {"run": {"rounds": 2}}


def names(axes: dict[str, list[Any]], num_seeds: int = 1, **sections: dict[str, Any]) -> list[str]:
    return [trial.name for trial in make_grid(RUN | sections, axes, num_seeds).trials]


def test_the_product_in_order_with_names_that_say_what_varies() -> None:
    axes = {"strategy.deadline_s": [10.0, 7.5], "strategy.name": ["lesson", "fedavg"]}
    assert names(axes, 2, run={"rounds": 2, "seed": 5}) == [
        "lesson-deadline_s=10-seed5", "lesson-deadline_s=10-seed6",
        "fedavg-deadline_s=10-seed5", "fedavg-deadline_s=10-seed6",
        "lesson-deadline_s=7.5-seed5", "lesson-deadline_s=7.5-seed6",
        "fedavg-deadline_s=7.5-seed5", "fedavg-deadline_s=7.5-seed6",
    ]  # fmt: skip
    first = make_grid(RUN, axes).trials[0].settings
    assert (first.strategy.name, first.strategy.deadline_s, first.run.rounds) == ("lesson", 10.0, 2)


def test_names_fit_file_systems() -> None:
    assert names({"strategy.ensure_first_tier": [True]}) == ["ensure_first_tier=true-seed0"]
    assert names({"fleet.cpu_hz": [[0.8e9, 3e9]]}) == ["cpu_hz=800000000_3000000000-seed0"]
    assert names({"strategy.deadline_s": [float("inf")], "radio.noise_dbm": [-94]}) == [
        "deadline_s=inf-noise_dbm=-94-seed0"
    ]
    keys = ["power_w", "noise_dbm", "bandwidth_hz", "model_bits", "path_loss_1km_db", "path_loss_slope_db", "area_km"]
    long = names({f"{section_of(key)}.{key}": [1 / 3, 2 / 3] for key in keys})
    assert len(set(long)) == 2 ** len(keys)
    assert max(map(len, long)) <= MAX_NAME + 9


def test_a_custom_strategy_has_no_colon_in_its_folder_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_for_grid.py").write_text("from lesson import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    assert names({"strategy.name": ["own_for_grid:Mine"]}) == ["own_for_grid.Mine-seed0"]


def test_options_go_to_the_strategies_that_know_them() -> None:
    axes = {"strategy.name": ["lesson", "fedavg"], "strategy.late": ["merge", "drop"]}
    assert names(axes) == ["lesson-late=merge-seed0", "lesson-late=drop-seed0", "fedavg-seed0"]
    grid = make_grid(RUN | {"strategy": {"late": "drop"}}, {"strategy.name": ["lesson", "fedavg"]})
    assert [trial.settings.strategy.options for trial in grid.trials] == [{"late": "drop"}, {}]


def test_quotes_do_not_matter_and_the_grid_written_down_is_the_grid(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[run]\nrounds = 2\n[sweep]\nseeds = 2\n"data.beta" = [0.1, 1]\n')
    (tmp_path / "b.toml").write_text("[run]\nrounds = 2\n[sweep]\nseeds = 2\ndata.beta = [0.1, 1]\n")
    grid = load_grid(str(tmp_path / "a.toml"))
    assert load_grid(str(tmp_path / "b.toml")) == grid
    (tmp_path / "c.toml").write_text(grid.toml)
    assert load_grid(str(tmp_path / "c.toml")) == grid
    changed = load_grid(str(tmp_path / "a.toml"), ["run.rounds=7"])
    assert [trial.settings.run.rounds for trial in changed.trials] == [7] * 4


BAD = [
    ("[run]\nrounds = 2", "[sweep] must hold lists of values, such as"),
    ("[sweep]\nseeds = 3", "[sweep] must hold lists of values, such as"),
    ("[sweep]\ndata.beta = []", "data.beta must be a list of values, got []"),
    ("[sweep]\ndata.beta = 0.1", "data.beta must be a list of values, got 0.1"),
    ('[sweep]\nstrategy.name = "lesson"', "strategy.name must be a list of values, got 'lesson'"),
    ("[sweep]\ndata.beta = [0.1, 0.0]", "[data] beta must be > 0, got 0.0"),
    ('[sweep]\ndata.beta = [0.1, "much"]', "[data] beta must be a number, got 'much'"),
    ("[sweep]\ndata.beta = [10, 0.1, 10.0]", "data.beta must be different values, got 10.0 twice"),
    ('[sweep]\ndata.beta = [1]\n"data.beta" = [2]', "data.beta must be in [sweep] once"),
    ("[sweep]\nscenario.beta = [0.1]", "scenario.beta is now data.beta"),
    ("[sweep]\ndata.bta = [0.1]", "[data] setting 'bta' is unknown; did you mean 'beta'?"),
    ("[sweep]\nbet = [0.1]", "setting 'bet' is unknown; did you mean 'beta'? 'lesson settings' lists all"),
    ("[sweep]\nlearning_rate = [0.1]", "learning_rate is a setting of [training] and [server]; name one: training"),
    (
        "[sweep]\nscenaro.beta = [0.1]",
        "a key of [sweep] must be seeds or one of fleet, radio, training, data, "
        "upload, server, strategy, run, faults, guards, a dot",
    ),
    ("[sweep]\nrun.seed = [1, 2]", "run.seed must not be in [sweep]; seeds = N takes N of them from run.seed on"),
    ("[sweep]\ndata.beta = [1]\nseeds = 0", "seeds must be a whole number from 1 to 1000, got 0"),
    ("[sweep]\ndata.beta = [1]\nseeds = true", "seeds must be a whole number from 1 to 1000, got True"),
    ('[sweep]\nstrategy.name = ["lesson", "leson"]', "strategy 'leson' is unknown; did you mean 'lesson'?"),
    ("[sweep]\nstrategy.name = [5]", "[strategy] name must be text, got 5"),
    ('[sweep]\nstrategy.late = ["merge", "wait"]', "[strategy] late must be 'merge' or 'drop', got 'wait'"),
    (
        '[sweep]\nstrategy.name = ["lesson", "fedavg"]\nstrategy.lat = ["drop"]',
        "[strategy] setting 'lat' is unknown to lesson and fedavg; did you mean 'late'?",
    ),
    ('[sweep]\ndata.dataset = ["mnist", "mnits"]', "dataset 'mnits' is unknown; did you mean 'mnist'?"),
    ("[sweep]\nrun.rounds = [0]", "[run] rounds must be >= 1, got 0"),
    ("[[sweep]]\ndata.beta = [1]", "sweep must be one table, written [sweep]"),
    ("[swep]\ndata.beta = [1]", "section 'swep' is unknown; did you mean 'sweep'?"),
    (
        f"[sweep]\nseeds = 1000\ndata.beta = {list(range(1, 102))}",
        "a sweep must have at most 100000 trials, got 101000; take fewer values",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_grids_are_one_line_and_status_2(
    text: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(text)
    assert main(["sweep", "grid.toml"]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"lesson: grid.toml: {message}")
    assert (output.err.count("\n"), output.out) == (1, "")
    assert [path.name for path in tmp_path.iterdir()] == ["grid.toml"], "something half-written"


def test_two_values_that_would_share_a_folder_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        from dataclasses import dataclass
        from lesson import FedAvg

        @dataclass
        class Mine(FedAvg):
            path: str = ""
    """
    (tmp_path / "own_with_path.py").write_text(textwrap.dedent(code))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"two trials would be called own_with_path.Mine-path=a.b; write their values"):
        names({"strategy.name": ["own_with_path:Mine"], "strategy.path": ["a/b", "a:b"]})


def test_the_server_may_vary() -> None:
    axes = {"strategy.name": ["fedavg", "lesson-memory"], "server.optimizer": ["none", "adam"]}
    trials = make_grid({"server": {"learning_rate": 0.01}}, axes).trials
    assert [trial.name for trial in trials][-1] == "lesson-memory-optimizer=adam-seed0"
    assert [trial.settings.server.optimizer for trial in trials] == ["none", "adam"] * 2
    assert {trial.settings.server.learning_rate for trial in trials} == {0.01}


def test_names_that_only_one_section_has_need_no_section(tmp_path: Path) -> None:
    (tmp_path / "short.toml").write_text("[run]\nrounds = 2\n[sweep]\nbeta = [0.1, 1]\n")
    assert load_grid(tmp_path / "short.toml").keys == ("data.beta",)
    with pytest.raises(InputError, match=r"data\.beta must be set once, got it by --set and in \[sweep\]"):
        load_grid(tmp_path / "short.toml", ["beta=3"])
