"""Tuned comparisons: which settings win and what is measured. Every number can be checked by hand."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from helpers.engines import FakeEngine
from helpers.run_folders import RMSE
from helpers.small_tasks import tiny_task
from helpers.tuned import FILE, Values, made, small, study_of
from lesson import InputError, Settings
from lesson.cli import main
from lesson.experiments.folder import MARKER
from lesson.experiments.tuning.file import Tuning
from lesson.experiments.tuning.study import has_collapsed
from lesson.experiments.tuning.tune import plan_tuning, tune
from lesson.learn.metric import ACCURACY, Metric
from lesson.runs.execute import execute

FIVE = FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2, 3, 4]")
TEN, TWENTY = "lesson τ=10", "lesson τ=20"


def table_of(folder: Path, values: Values, text: str = FILE, metric: Metric = ACCURACY) -> pd.DataFrame:
    return study_of(folder, values, text, metric).table().set_index(["beta", "entry"])


def rising(settings: Settings) -> list[float]:
    """LESSON is faster the shorter τ, FedAvg slowest; at β = 0.1 nobody reaches 70 %. The fraction 0.5 is better."""
    if settings.strategy.name == "fedavg":
        late = 3 + settings.run.seed % 100 + (settings.strategy.options["fraction"] == 1.0)
    else:
        late = 1 if settings.strategy.deadline_s == 10.0 else 2
    return [0.1] * late + [0.6 if settings.data.beta == 0.1 else 0.8] * (8 - late)


def test_grid_is_combined_with_points(tmp_path: Path) -> None:
    more = 'server = { optimizer = "adam" }\npoints = [{ "server.epsilon" = 1e-5 }, { "server.epsilon" = 1e-4 }]\n'
    text = FILE.replace("[1.0, 0.5] }\n", f"[1.0] }}\n{more}").replace("betas = [0.1, 1.0]", "betas = [1.0]")
    runs = plan_tuning(small(tmp_path, text), {}, ["fedavg"]).runs.values()
    assert [(one.training.learning_rate, one.server.epsilon) for one in runs] == [
        (0.05, 1e-5), (0.05, 1e-4), (0.1, 1e-5), (0.1, 1e-4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("[0.05, 0.1]", str([number / 20 for number in range(1, 12)]), "from 1 to 20"),
        ("strategy.fraction", "strategy.fractoin", "'fraction'"),
        ('[{ "strategy.deadline_s" = 20.0 }, { "strategy.deadline_s" = 10.0 }]', "[20.0]", "points"),
        ('group = "deadlines"', 'group = "deadline"', "'deadlines'"),
        ("deadline_s = 20.0 }\n", "deadline_s = 0.0 }\n", "deadline_s"),
        ("[rules]", "[rulez]", "'rules'"),
        ("final_s = 800.0", "finel_s = 800.0", "'final_s'"),
        ("tuning_seeds = [100]", "tuning_seeds = [1]", "tuning_seeds"),
        ("final_s = 800.0", "final_s = 99.0", "eval_every_s"),
    ],
)
def test_invalid_file_prints_one_line_and_exits_with_2(
    old: str, new: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in FILE
    path = tmp_path / "entries.toml"
    path.write_text(FILE.replace(old, new, 1))
    assert main(["sweep", str(path), "--tune", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert key in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_study_toml_is_a_file_of_the_same_comparison(tmp_path: Path) -> None:
    """With the comments of the file, also if only some entries were executed; entries may be added at its end."""
    tuning = small(tmp_path, f"# mine\n{FILE}")
    tune(tuning, tmp_path / "out", FakeEngine(at_most=1), only=["lesson"])
    path = tmp_path / "out" / MARKER
    assert path.read_text().startswith(f"# mine\n{FILE}")
    assert Tuning.load(path) == tuning
    path.write_text(path.read_text() + '\n[[entries]]\nname = "more"\ngroup = "deadlines"\n')
    assert [entry.name for entry in Tuning.load(path).entries][-1] == "more"


def test_best_settings_at_the_end_of_tuning_win(tmp_path: Path) -> None:
    """Of two equal points the first; the last one diverges; what happens after 400 s does not count."""
    last = {(0.05, 1.0): 0.3, (0.05, 0.5): 0.5, (0.1, 1.0): 0.5, (0.1, 0.5): 0.0}

    def values(settings: Settings) -> list[float]:
        if settings.strategy.name != "fedavg":
            return [0.6] * 8
        key = settings.training.learning_rate, settings.strategy.options["fraction"]
        return [0.9, *[last[key]] * 3, 1.0 if last[key] == 0.3 else 0.0] if last[key] else []

    assert table_of(tmp_path, values).loc[(1.0, "fedavg"), "settings"] == "learning_rate = 0.05, fraction = 0.5"


def test_fewer_collapsed_tuning_runs_win(tmp_path: Path) -> None:
    """δ = 0.05 has 40, 50 and 60 %; δ = 0.1 has 90 % twice and collapses once."""
    text = FILE.replace("tuning_seeds = [100]", "tuning_seeds = [100, 101, 102]").replace("[1.0, 0.5]", "[1.0]")
    tuned = {0.05: (0.4, 0.5, 0.6), 0.1: (0.9, 0.9, 0.1)}

    def values(settings: Settings) -> list[float]:
        return [tuned.get(settings.training.learning_rate, tuned[0.05])[settings.run.seed % 100]] * 8

    assert table_of(tmp_path, values, text).loc[(1.0, "fedavg"), "settings"] == "learning_rate = 0.05, fraction = 1"


def test_lower_is_better(tmp_path: Path) -> None:
    """LESSON is best at a deadline of 10 s, FedAvg with a rate of 0.1; a fraction of a half diverges."""
    text = FILE.replace("targets = [0.5, 0.7]", 'targets = [4.0, 2.0]\nmetric = "rmse"\nhigher_is_better = false')

    def values(settings: Settings) -> list[float]:
        length = int(settings.run.time_budget_s / 100)
        if settings.strategy.name == "fedavg":
            best = 5.0 if settings.training.learning_rate == 0.1 else 9.0
            return [best] * length if settings.strategy.options.get("fraction") != 0.5 else []
        return [settings.strategy.deadline_s / 10 + 0.5] * length

    table = table_of(tmp_path, values, text, RMSE)
    fedavg, lesson = table.loc[(0.1, "fedavg")], table.loc[(0.1, "lesson")]
    assert (fedavg["settings"], lesson["settings"]) == ("learning_rate = 0.1, fraction = 1", "deadline_s = 10")
    assert (lesson["rmse_at_400"], lesson["rmse_at_800"], lesson["time_to_2"]) == (1.5, 1.5, 300.0)
    assert lesson["rmse_gain"] == 3.5, "the reference has 5.0, and lower is better"
    assert math.isnan(fedavg["time_to_4"])
    assert table.loc[(0.1, TWENTY), "reference"] == TEN
    with pytest.raises(InputError, match="metric"):
        study_of(tmp_path, lambda _: [0.5] * 8, text)


def test_means_ratios_and_references(tmp_path: Path) -> None:
    """FedAvg reaches 70 % after 3 or 4 guesses and three 0.8: at 600 and 700 s; LESSON at τ = 10 always at 400 s.

    (0.1 + 0.8 + 0.8) / 3 is below 0.7. Two seeds give no interval. In each 100 s, there are 10 uploads and 2.5 kJ.
    """
    table = table_of(tmp_path, rising)
    fedavg, lesson = table.loc[(1.0, "fedavg")], table.loc[(1.0, "lesson")]
    assert (fedavg["settings"], lesson["settings"]) == ("learning_rate = 0.05, fraction = 0.5", "deadline_s = 10")
    assert [fedavg[f"time_to_0.7{end}"] for end in ("", "_min", "_max")] == [650.0, 600.0, 700.0]
    assert math.isnan(fedavg["time_to_0.7_ci95"])
    assert [lesson[name] for name in ("time_to_0.7", "uploads_to_0.7", "energy_to_0.7")] == [400.0, 40, 10_000.0]
    assert lesson["time_ratio"] == pytest.approx((400 / 600 + 400 / 700) / 2)
    assert lesson["accuracy_gain"] == 0.0
    assert (lesson["reference"], fedavg["time_ratio"]) == ("fedavg", 1.0)
    slow = table.loc[(1.0, TWENTY)]
    assert (slow["reference"], slow["time_ratio"]) == (TEN, 500 / 400), "the faster is the reference"
    unreached = table.loc[(0.1, "lesson")]
    assert math.isnan(unreached["time_to_0.7"])
    assert (unreached["time_to_0.7_seeds"], unreached["time_to_0.5_seeds"]) == (0, 2)


def test_reference_is_the_most_accurate_if_a_seed_misses_the_target(tmp_path: Path) -> None:
    """τ = 20 s is lucky with seed 0; τ = 10 s ends higher."""

    def values(settings: Settings) -> list[float]:
        twenty = settings.strategy.deadline_s == 20.0
        return [0.8 if twenty and settings.run.seed == 0 else 0.6] * 4 + [0.6 if twenty else 0.65] * 4

    table = table_of(tmp_path, values)
    assert table.loc[(1.0, TWENTY), "time_to_0.7_seeds"] == 1
    assert table.loc[(1.0, TWENTY), "reference"] == TEN


@pytest.mark.parametrize(
    ("accuracies", "collapsed"),
    [
        ([0.1, 0.2, 0.3, 0.3, 0.3, 0.21, 0.21, 0.21], False),  # above twice 10 %
        ([0.1] * 5 + [0.2] * 3, True),
        ([0.8] * 5 + [0.4] * 3, True),  # half of its best
        ([0.8] * 5 + [0.41] * 3, False),
        ([0.4, 0.4, 1.0, 0.4, 0.4, 0.41, 0.41, 0.41], False),  # one good evaluation is not its best
        ([0.1, 0.9], False),
    ],
)
def test_collapsed_runs(accuracies: list[float], collapsed: bool) -> None:
    assert has_collapsed(made(Settings(rounds=50), accuracies), 800.0) == collapsed
    assert has_collapsed(made(Settings(rounds=50), accuracies, "no longer finite"), 800.0)


def test_collapsed_runs_are_counted_and_not_averaged(tmp_path: Path) -> None:
    """Of five seeds of FedAvg, two end at 10 %; the others at 50, 60 and 70 %, 60 ± 4.303·10/√3 = ±24.8 points.

    A collapsed run reaches no target, even one that was at 60 % before. Five pairs of which some are bounds decide
    nothing.
    """

    def values(settings: Settings) -> list[float]:
        if settings.strategy.name == "fedavg":
            return [0.6] * 4 + [[0.5, 0.6, 0.7, 0.1, 0.1][settings.run.seed % 100]] * 4
        return [0.7 if settings.run.seed != 4 else 0.1] * 8

    table = table_of(tmp_path, values, FIVE)
    fedavg, lesson = table.loc[(1.0, "fedavg")], table.loc[(1.0, "lesson")]
    assert (fedavg["collapsed"], lesson["collapsed"], fedavg["time_to_0.5_seeds"]) == (2, 1, 3)
    assert (fedavg["accuracy_at_400"], fedavg["accuracy_at_400_ci95"]) == pytest.approx((0.6, 0.0))
    assert (fedavg["accuracy_at_800"], fedavg["accuracy_at_800_ci95"]) == pytest.approx((0.6, 0.2484), rel=1e-3)
    assert math.isnan(lesson["accuracy_gain"])
    assert lesson["accuracy_gain_verdict"] == "undecided"


def test_reference_with_fewer_collapsed_runs_is_preferred(tmp_path: Path) -> None:
    """τ = 10 s ends at 65 % and τ = 20 s at 40 %, but one run of τ = 10 s collapses at β = 1."""

    def values(settings: Settings) -> list[float]:
        ten = settings.strategy.deadline_s == 10.0
        return [0.1 if ten and settings.run.seed == settings.data.beta - 1 else 0.65 if ten else 0.4] * 8

    table = table_of(tmp_path, values, FIVE)
    assert (table.loc[(0.1, TEN), "reference"], table.loc[(1.0, TEN), "reference"]) == (TEN, TWENTY)


def test_only_complete_entries_are_in_the_table(tmp_path: Path) -> None:
    study = study_of(tmp_path, rising)
    missing = next(run for run in study.runs if run.labels["entry"] == TWENTY)
    some = [run for run in study.runs if run.labels["entry"] != "fedavg" and run is not missing]
    table = replace(study, runs=some).table()
    assert set(table["entry"]) == {"lesson", TEN}
    assert set(table["reference"]) == {"", TEN}


def test_group_with_seeds_of_its_own(tmp_path: Path) -> None:
    """The group has seeds 1 to 3 and the rules 0 and 1, so comparisons between groups use seed 1."""
    text = FILE.replace('title = "Deadlines"\n', 'title = "Deadlines"\nseeds = [1, 2, 3]\n')
    study = study_of(tmp_path, rising, text)
    table = study.table().set_index(["beta", "entry"])
    assert table.loc[1.0, "seeds"].to_dict() == {"fedavg": 2, "lesson": 2, TEN: 3, TWENTY: 3}
    assert len(study.compare("lesson", TEN, 1.0)["time_ratio"].low) == 1
    with pytest.raises(InputError, match="group 'deadlines': seeds"):
        small(tmp_path, text.replace("[1, 2, 3]", "[99, 100]"))


LEVELS = f"""{FILE[: FILE.index("[groups.strategies]")]}
[groups.shadowing]
title = "Shadowing"
references = ["far, 0 dB"]
[groups.shadowing.levels]
"0 dB" = {{}}
"8 dB" = {{ "radio.shadowing_db" = 8.0 }}

[[entries]]
name = "far"
group = ["shadowing"]
fleet = {{ area_km = 3.0 }}

[[entries]]
name = "near"
group = "shadowing"
"""


def test_entry_takes_part_at_each_level_of_its_groups(tmp_path: Path) -> None:
    def values(settings: Settings) -> list[float]:
        return [0.4 if settings.radio.shadowing_db and settings.fleet.area_km > 2 else 0.8] * 8

    table = table_of(tmp_path, values, LEVELS)
    found = table.loc[1.0]["accuracy_at_800"]
    assert found.to_dict() == pytest.approx({"far, 0 dB": 0.8, "far, 8 dB": 0.4, "near, 0 dB": 0.8, "near, 8 dB": 0.8})
    with pytest.raises(InputError, match="shadowing_db"):
        small(tmp_path, LEVELS.replace('db" = 8.0', 'db" = -8.0'))


def test_entries_are_compared_by_seed(tmp_path: Path) -> None:
    """τ = 10 s is 20 points ahead with each of six seeds, unless it collapses with the last one."""
    six = FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2, 3, 4, 5]")
    for last, verdict in ((0.79, "higher"), (0.1, "undecided")):

        def values(settings: Settings, last: float = last) -> list[float]:
            ten = [0.8, 0.81, 0.8, 0.79, 0.8, last][settings.run.seed % 100]
            return [ten if settings.strategy.deadline_s == 10.0 else 0.6] * 8

        gain = study_of(tmp_path, values, six).compare(TEN, TWENTY, 1.0)["accuracy_gain"]
        assert gain.verdict(0.0) == verdict
        assert gain.low[:5] == pytest.approx([0.2, 0.21, 0.2, 0.19, 0.2])


def test_command_tunes_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: engine)
    small(tmp_path, FILE.replace("betas = [0.1, 1.0]", "betas = [1.0]"))
    out = tmp_path / "out"
    flags = ["--tune", "--entries", f"lesson,{TEN}"]
    assert main(["sweep", str(tmp_path / "entries.toml"), "--out", str(out), *flags]) == 0
    assert [len(asked) for asked in engine.asked] == [2 + 2, 2]
    names = (MARKER, "runs.jsonl.gz", "table.csv", "tuning.md")
    before = [(out / name).read_bytes() for name in names]
    for run in out.glob("*/"):
        shutil.rmtree(run)
    (out / "table.csv").unlink()
    assert main(["sweep", str(out / MARKER), *flags]) == 0
    assert [(out / name).read_bytes() for name in names] == before, "from the archive"
    assert len(engine.asked) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    sorted(Path(__file__).parents[2].glob("experiments/*/*.toml")),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_entries_of_experiments_run_two_rounds(path: Path, tmp_path: Path) -> None:
    """On tiny data and a tiny model, at the highest level of each group."""
    tuning = Tuning.load(path)
    rules, task = tuning.rules, tiny_task(600)
    highest_levels = {(entry.group, entry.name.partition(",")[0]): entry for entry in tuning.entries}
    for number, entry in enumerate(highest_levels.values()):
        settings = entry.settings(entry.points[-1], rules.betas[0], rules.seeds[0], rules)
        # Other splits need more data, and other trainers may start processes.
        short = settings.with_changes(rounds=2, device="cpu", split="iid", trainer="reference")
        summary = execute(short, tmp_path / str(number), task=task, num_threads=1)
        assert summary["rounds"] == 2, entry.name
