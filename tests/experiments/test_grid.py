"""Grids of settings: the files of sweeps, and comparisons of strategies."""

from pathlib import Path
from typing import Any

import pytest

from lesson import InputError
from lesson.cli import main
from lesson.experiments.grid import compare_strategies, load_grid, make_grid
from lesson.settings.settings import Settings

RUN = {"run": {"rounds": 2}}


def test_trials_are_named_by_varied_settings() -> None:
    axes: dict[str, Any] = {"strategy.deadline_s": [10.0, 7.5], "strategy.name": ["lesson", "fedavg"]}
    trials = make_grid({"run": {"rounds": 2, "seed": 5}}, axes, 2).runs
    assert list(trials) == [
        "lesson-deadline_s=10-seed5", "lesson-deadline_s=10-seed6",
        "fedavg-deadline_s=10-seed5", "fedavg-deadline_s=10-seed6",
        "lesson-deadline_s=7.5-seed5", "lesson-deadline_s=7.5-seed6",
        "fedavg-deadline_s=7.5-seed5", "fedavg-deadline_s=7.5-seed6",
    ]  # fmt: skip
    last = trials["fedavg-deadline_s=7.5-seed6"]
    assert (last.strategy.name, last.strategy.deadline_s, last.run.rounds, last.run.seed) == ("fedavg", 7.5, 2, 6)


def test_options_apply_to_the_strategies_that_have_them() -> None:
    axes = {"strategy.name": ["lesson", "fedavg"], "strategy.late": ["merge", "drop"]}
    assert list(make_grid(RUN, axes).runs) == ["lesson-late=merge-seed0", "lesson-late=drop-seed0", "fedavg-seed0"]
    trials = make_grid(RUN | {"strategy": {"late": "drop"}}, {"strategy.name": ["lesson", "fedavg"]}).runs
    assert [trial.strategy.options for trial in trials.values()] == [{"late": "drop"}, {}]


def test_file_is_read_and_written(tmp_path: Path) -> None:
    """Quotes do not matter, nor does the section if only one has the setting."""
    (tmp_path / "a.toml").write_text('[run]\nrounds = 2\n[sweep]\nseeds = 2\n"data.beta" = [0.1, 1]\n')
    (tmp_path / "b.toml").write_text("[run]\nrounds = 2\n[sweep]\nseeds = 2\nbeta = [0.1, 1]\n")
    grid = load_grid(str(tmp_path / "a.toml"))
    assert load_grid(tmp_path / "b.toml") == grid
    (tmp_path / "c.toml").write_text(grid.toml)
    assert load_grid(tmp_path / "c.toml") == grid
    changed = load_grid(tmp_path / "a.toml", ["run.rounds=7"])
    assert [trial.run.rounds for trial in changed.runs.values()] == [7] * 4


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[run]\nrounds = 2", "[sweep]"),
        ("[sweep]\ndata.beta = []", "data.beta"),
        ("[sweep]\ndata.beta = [0.1, 0.0]", "beta"),
        ("[sweep]\nbet = [0.1]", "'beta'"),
        ("[sweep]\nlearning_rate = [0.1]", "training"),
        ("[sweep]\nrun.seed = [1, 2]", "seeds"),
        ("[sweep]\ndata.beta = [1]\nseeds = 0", "seeds"),
        ('[sweep]\nstrategy.late = ["merge", "wait"]', "late"),
        ('[upload]\ncompression = "qsgd"\n[sweep]\nupload.level = [8.0, 99.0]', "level"),
        ('[sweep]\nradio.allocation = ["equal", "eqal"]', "eqal"),
        ('[sweep]\nradio.channel = ["", "missing:Channel"]', "missing"),
        ("[swep]\ndata.beta = [1]", "'sweep'"),
        (f"[sweep]\nseeds = 1000\ndata.beta = {list(range(1, 102))}", "101000"),
    ],
)
def test_invalid_file_prints_one_line_and_exits_with_2(
    text: str, key: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(text)
    assert main(["sweep", "grid.toml"]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("lesson: grid.toml: ")
    assert key in output.err
    assert (output.err.count("\n"), output.out) == (1, "")
    assert [path.name for path in tmp_path.iterdir()] == ["grid.toml"]


def test_two_values_that_would_share_a_folder_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_with_path.py").write_text(
        "from dataclasses import dataclass\nfrom lesson import FedAvg\n\n"
        "@dataclass\nclass Mine(FedAvg):\n    path: str = ''\n"
    )
    monkeypatch.chdir(tmp_path)
    axes = {"strategy.name": ["own_with_path:Mine"], "strategy.path": ["a/b"]}
    assert list(make_grid(RUN, axes).runs) == ["own_with_path.Mine-path=a.b-seed0"]
    with pytest.raises(InputError, match="the same name"):
        make_grid(RUN, axes | {"strategy.path": ["a/b", "a:b"]})


def test_options_of_a_single_strategy_in_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text('[sweep]\n"strategy.name" = ["lesson", "lesson-fitted"]\n"strategy.late" = ["drop", "merge"]')
    grid = load_grid(path, ["lesson.late=drop", "run.rounds=2"])
    assert {name: trial.strategy.options for name, trial in grid.runs.items()} == {
        "lesson-late=drop-seed0": {"late": "drop"},
        "lesson-fitted-late=drop-seed0": {"late": "drop"},
        "lesson-fitted-late=merge-seed0": {"late": "merge"},
    }
    (tmp_path / "written.toml").write_text(grid.toml)
    assert load_grid(tmp_path / "written.toml") == grid
    with pytest.raises(InputError, match="only once"):
        load_grid(path, ["strategy.late=drop"])
    with pytest.raises(InputError, match="no effect"):
        make_grid({"fedavg": {"fraction": 0.5}}, {"data.beta": [1.0]})


def test_comparison_is_a_grid_over_strategies() -> None:
    """An option applies to the strategies that have it, and one by name to that strategy alone."""
    base = Settings(strategy={"name": "lesson", "late": "drop"}, run={"seed": 3, "rounds": 2})
    grid = compare_strategies(base, ["lesson", "fedavg"], 2, {"fedavg": {"fraction": 0.5}})
    assert list(grid.runs) == ["lesson-seed3", "lesson-seed4", "fedavg-seed3", "fedavg-seed4"]
    options = {trial.strategy.name: trial.strategy.options for trial in grid.runs.values()}
    assert options == {"lesson": {"late": "drop"}, "fedavg": {"fraction": 0.5}}
