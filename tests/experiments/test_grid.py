import textwrap
from pathlib import Path
from typing import Any

import pytest

from lesson import InputError
from lesson.cli import main
from lesson.experiments.grid import compare_strategies, load_grid, make_grid
from lesson.settings.settings import Settings

RUN = {"run": {"rounds": 2}}


def names(axes: dict[str, list[Any]], num_seeds: int = 1, **sections: dict[str, Any]) -> list[str]:
    return list(make_grid(RUN | sections, axes, num_seeds).trials)


def settings_of(sections: dict[str, Any], axes: dict[str, list[Any]]) -> list[Settings]:
    return list(make_grid(RUN | sections, axes).trials.values())


def test_the_product_in_order_with_names_that_say_what_varies() -> None:
    axes = {"strategy.deadline_s": [10.0, 7.5], "strategy.name": ["lesson", "fedavg"]}
    assert names(axes, 2, run={"rounds": 2, "seed": 5}) == [
        "lesson-deadline_s=10-seed5", "lesson-deadline_s=10-seed6",
        "fedavg-deadline_s=10-seed5", "fedavg-deadline_s=10-seed6",
        "lesson-deadline_s=7.5-seed5", "lesson-deadline_s=7.5-seed6",
        "fedavg-deadline_s=7.5-seed5", "fedavg-deadline_s=7.5-seed6",
    ]  # fmt: skip
    first = settings_of({}, axes)[0]
    assert (first.strategy.name, first.strategy.deadline_s, first.run.rounds) == ("lesson", 10.0, 2)


def test_options_go_to_the_strategies_that_know_them() -> None:
    axes = {"strategy.name": ["lesson", "fedavg"], "strategy.late": ["merge", "drop"]}
    assert names(axes) == ["lesson-late=merge-seed0", "lesson-late=drop-seed0", "fedavg-seed0"]
    trials = settings_of({"strategy": {"late": "drop"}}, {"strategy.name": ["lesson", "fedavg"]})
    assert [trial.strategy.options for trial in trials] == [{"late": "drop"}, {}]


def test_quotes_do_not_matter_and_the_grid_written_down_is_the_grid(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[run]\nrounds = 2\n[sweep]\nseeds = 2\n"data.beta" = [0.1, 1]\n')
    (tmp_path / "b.toml").write_text("[run]\nrounds = 2\n[sweep]\nseeds = 2\ndata.beta = [0.1, 1]\n")
    grid = load_grid(str(tmp_path / "a.toml"))
    assert load_grid(str(tmp_path / "b.toml")) == grid
    (tmp_path / "c.toml").write_text(grid.toml)
    assert load_grid(str(tmp_path / "c.toml")) == grid
    changed = load_grid(str(tmp_path / "a.toml"), ["run.rounds=7"])
    assert [trial.run.rounds for trial in changed.trials.values()] == [7] * 4


BAD = [
    ("[run]\nrounds = 2", "[sweep] must hold lists of values, such as"),
    ("[sweep]\nseeds = 3", "[sweep] must hold lists of values, such as"),
    ("[sweep]\ndata.beta = []", "data.beta must be a list of values, got []"),
    ("[sweep]\ndata.beta = 0.1", "data.beta must be a list of values, got 0.1"),
    ('[sweep]\nstrategy.name = "lesson"', "strategy.name must be a list of values, got 'lesson'"),
    ("[sweep]\ndata.beta = [0.1, 0.0]", "[data] beta must be > 0, got 0.0"),
    ('[sweep]\ndata.beta = [0.1, "much"]', "[data] beta must be a number, got 'much'"),
    ("[sweep]\ndata.beta = [10, 0.1, 10.0]", "data.beta must have distinct values, got 10.0 twice"),
    ('[sweep]\ndata.beta = [1]\n"data.beta" = [2]', "data.beta must be in [sweep] only once"),
    ("[sweep]\nscenario.beta = [0.1]", "scenario.beta is now data.beta"),
    ("[sweep]\ndata.bta = [0.1]", "[data] unknown setting 'bta'; did you mean 'beta'?"),
    ("[sweep]\nbet = [0.1]", "unknown setting 'bet'; did you mean 'beta'? 'lesson settings' lists all"),
    ("[sweep]\nlearning_rate = [0.1]", "learning_rate is a setting of [training] and [server]; use training"),
    (
        "[sweep]\nscenaro.beta = [0.1]",
        "a key of [sweep] must be seeds or section.key, with one of fleet, radio, training, data, "
        "task, upload, server, strategy, run, faults, guards, got",
    ),
    (
        "[sweep]\nrun.seed = [1, 2]",
        "run.seed must not be in [sweep]; use seeds = N for N seeds that count from run.seed",
    ),
    ("[sweep]\ndata.beta = [1]\nseeds = 0", "the number of seeds must be a whole number from 1 to 1000, got 0"),
    ("[sweep]\ndata.beta = [1]\nseeds = true", "the number of seeds must be a whole number from 1 to 1000, got True"),
    ('[sweep]\nstrategy.name = ["lesson", "leson"]', "unknown strategy 'leson'; did you mean 'lesson'?"),
    ("[sweep]\nstrategy.name = [5]", "[strategy] name must be text, got 5"),
    ('[sweep]\nstrategy.late = ["merge", "wait"]', "[strategy] late must be 'merge' or 'drop', got 'wait'"),
    (
        '[sweep]\nstrategy.name = ["lesson", "fedavg"]\nstrategy.lat = ["drop"]',
        "[strategy] unknown setting 'lat' for lesson and fedavg; did you mean 'late'?",
    ),
    ('[sweep]\ndata.dataset = ["mnist", "mnits"]', "unknown dataset 'mnits'; did you mean 'mnist'?"),
    ("[sweep]\nrun.rounds = [0]", "[run] rounds must be >= 1, got 0"),
    ("[[sweep]]\ndata.beta = [1]", "sweep must be one table, written [sweep]"),
    ("[swep]\ndata.beta = [1]", "unknown section 'swep'; did you mean 'sweep'?"),
    (
        f"[sweep]\nseeds = 1000\ndata.beta = {list(range(1, 102))}",
        "a sweep must have at most 100000 runs, got 101000; use fewer values",
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
    with pytest.raises(
        InputError, match=r"two runs would have the same name, own_with_path.Mine-path=a.b-seed0; write their values"
    ):
        names({"strategy.name": ["own_with_path:Mine"], "strategy.path": ["a/b", "a:b"]})


def test_the_server_may_vary() -> None:
    axes = {"strategy.name": ["fedavg", "lesson-memory"], "server.optimizer": ["none", "adam"]}
    assert names(axes)[-1] == "lesson-memory-optimizer=adam-seed0"
    trials = settings_of({"server": {"learning_rate": 0.01}}, axes)
    assert [trial.server.optimizer for trial in trials] == ["none", "adam"] * 2
    assert {trial.server.learning_rate for trial in trials} == {0.01}


def test_names_that_only_one_section_has_need_no_section(tmp_path: Path) -> None:
    (tmp_path / "short.toml").write_text("[run]\nrounds = 2\n[sweep]\nbeta = [0.1, 1]\n")
    assert load_grid(tmp_path / "short.toml").keys == ("data.beta",)
    with pytest.raises(
        InputError, match=r"data\.beta must be set only once, got it in \[sweep\] and as a change for all runs"
    ):
        load_grid(tmp_path / "short.toml", ["beta=3"])


def test_a_sweep_gives_one_strategy_options_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(
        '[sweep]\n"strategy.name" = ["lesson", "lesson-memory"]\n"strategy.late" = ["drop", "merge"]'
    )
    grid = load_grid(str(tmp_path / "grid.toml"), ["lesson.late=drop", "run.rounds=2"])
    assert {name: trial.strategy.options for name, trial in grid.trials.items()} == {
        "lesson-late=drop-seed0": {"late": "drop"},
        "lesson-memory-late=drop-seed0": {"late": "drop"},
        "lesson-memory-late=merge-seed0": {"late": "merge"},
    }
    (tmp_path / "written.toml").write_text(grid.toml)
    assert load_grid(str(tmp_path / "written.toml")) == grid
    with pytest.raises(
        InputError, match=r"strategy\.late must be set only once, got it in \[sweep\] and as a change for all runs"
    ):
        load_grid(str(tmp_path / "grid.toml"), ["strategy.late=drop"])
    with pytest.raises(InputError, match=r"fedavg\.fraction has no effect: the strategy is lesson"):
        make_grid({"fedavg": {"fraction": 0.5}}, {"data.beta": [1.0]})


def test_a_comparison_is_a_grid_over_strategies() -> None:
    """An option applies to the strategies that have it, and one by name to that strategy alone."""
    base = Settings(strategy={"name": "lesson", "late": "drop"}, run={"seed": 3, "rounds": 2})
    grid = compare_strategies(base, ["lesson", "fedavg"], 2, {"fedavg": {"fraction": 0.5}})
    assert (grid.kind, list(grid.trials)) == (
        "comparison",
        ["lesson-seed3", "lesson-seed4", "fedavg-seed3", "fedavg-seed4"],
    )
    options = {trial.strategy.name: trial.strategy.options for trial in grid.trials.values()}
    assert options == {"lesson": {"late": "drop"}, "fedavg": {"fraction": 0.5}}
    assert make_grid(RUN, {"strategy.name": ["lesson"], "data.beta": [1.0]}).kind == "sweep"
