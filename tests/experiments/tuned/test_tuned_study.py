"""Tuned comparisons: which settings win, what is measured, what is shown; every number can be checked by hand."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.tuned import FILE, everything, made, small
from lesson.experiments.naming import run_name
from lesson.experiments.run import Run
from lesson.experiments.tuned.cases import Case
from lesson.experiments.tuned.collapse import has_collapsed
from lesson.experiments.tuned.measures import measure
from lesson.report.palette import line_looks
from lesson.report.tuned.figures import _order, draw_curves
from lesson.report.tuned.tables import at_ends, group_table, settings_table
from lesson.report.tuned.write import missing_runs, write_tuned
from lesson.settings.settings import Settings


def rising(settings: Settings) -> list[float]:
    """LESSON is faster the shorter τ, FedAvg slowest; at β = 0.1 nobody reaches 70 %. The fraction 0.5 is better."""
    if settings.strategy.name == "fedavg":
        late = 3 + settings.run.seed % 100 + (settings.strategy.options["fraction"] == 1.0)
    else:
        late = 1 if settings.strategy.deadline_s == 10.0 else 2
    return [0.1] * late + [0.6 if settings.data.beta == 0.1 else 0.8] * (8 - late)


def test_the_point_of_the_highest_accuracy_is_chosen_and_the_first_of_several(tmp_path: Path) -> None:
    design = small(tmp_path)
    case = Case(design.by_name["fedavg"], 1.0, design.rules)
    runs: dict[str, Run] = {}
    for (name, settings), last in zip(case.tuning().items(), (0.3, 0.5, 0.5, 0.9), strict=True):
        assert case.chosen(runs) is None
        assert case.finals(runs) is None
        runs[name] = made(settings, [0.9, last, last, last, 0.0])  # 500 s is too late to count
    runs[name] = replace(runs[name], diverged="no longer finite")  # the best has diverged: a guess
    scores = [score for score in case.scores(runs) if score is not None]
    assert [score.value for score in scores] == pytest.approx([0.3, 0.5, 0.5, 0.1])
    assert [(score.collapsed, score.diverged) for score in scores] == [(0, 0), (0, 0), (0, 0), (1, 1)]
    assert case.chosen(runs) == {"training.learning_rate": 0.05, "strategy.fraction": 0.5}
    assert list(case.finals(runs) or ()) == [
        "fedavg-mnist-fraction=0.5-learning_rate=0.05-seed0",
        "fedavg-mnist-fraction=0.5-learning_rate=0.05-seed1",
    ]


def test_tuning_runs_are_short_and_of_another_seed(tmp_path: Path) -> None:
    design = small(tmp_path)
    case = Case(design.by_name["lesson"], 0.1, design.rules)
    assert {(one.run.seed, one.run.time_budget_s) for one in case.tuning().values()} == {(100, 400.0)}
    assert not Case(design.by_name["lesson τ=10"], 0.1, design.rules).tuning()
    final = next(iter(Case(design.by_name["lesson τ=10"], 0.1, design.rules).finals({}).values()))  # type: ignore[union-attr]
    assert (final.run.time_budget_s, final.run.eval_every_s, final.data.beta) == (800.0, 100.0, 0.1)


def test_what_is_measured_of_a_run(tmp_path: Path) -> None:
    design = small(tmp_path)
    settings = design.by_name["lesson"].settings({}, 1.0, 0, design.rules)
    run = made(settings, [0.1, 0.4, 0.5, 0.6, 0.7, 0.8, 0.6, 0.6])  # means of three: .33 .5 .6 .7 .7 .67
    assert measure(run, design.rules) == pytest.approx(
        {
            "accuracy_at_400": 0.5,
            "accuracy_at_800": 2 / 3,
            "time_to_0.5": 400.0,
            "time_to_0.7": 600.0,
            "uploads_to_0.7": 60.0,
            "energy_to_0.7": 15000.0,
        }
    )
    lost = measure(replace(run, diverged="no longer finite"), design.rules)
    assert lost["accuracy_at_400"] == lost["accuracy_at_800"] == 0.1
    assert math.isnan(lost["time_to_0.5"])
    assert math.isnan(lost["energy_to_0.7"])


def test_means_intervals_and_pairs(tmp_path: Path) -> None:
    """FedAvg reaches 70 % after 3 or 4 guesses and three 0.8: at 600 and 700 s; LESSON at τ = 10 always at 400 s.

    (0.1 + 0.8 + 0.8) / 3 is below 0.7. Two seeds give no interval.
    """
    design = small(tmp_path)
    figures = design.study(everything(design, rising), {}).table().set_index(["beta", "entry"])
    fedavg, lesson = figures.loc[(1.0, "fedavg")], figures.loc[(1.0, "lesson")]
    assert (fedavg["settings"], lesson["settings"]) == ("learning_rate = 0.05, fraction = 0.5", "deadline_s = 10")
    assert fedavg["time_to_0.7"] == 650.0
    assert (fedavg["time_to_0.7_min"], fedavg["time_to_0.7_max"]) == (600.0, 700.0)
    assert math.isnan(fedavg["time_to_0.7_ci95"])
    assert lesson["time_to_0.7"] == 400.0
    assert lesson["time_ratio"] == pytest.approx((400 / 600 + 400 / 700) / 2)
    assert lesson["accuracy_gain"] == 0.0
    assert (lesson["reference"], fedavg["time_ratio"], fedavg["time_ratio_max"]) == ("fedavg", 1.0, 1.0)
    assert figures.loc[(1.0, "lesson τ=20"), "reference"] == "lesson τ=10"  # the faster
    assert figures.loc[(1.0, "lesson τ=20"), "time_ratio"] == 500 / 400
    assert math.isnan(figures.loc[(0.1, "lesson"), "time_to_0.7"])
    assert figures.loc[(0.1, "lesson"), "time_to_0.7_seeds"] == 0
    assert figures.loc[(0.1, "lesson"), "time_to_0.5_seeds"] == 2


def test_a_time_that_not_every_seed_has_is_a_count(tmp_path: Path) -> None:
    design = small(tmp_path)
    results = everything(
        design, lambda one: [0.5] * 8 if (one.run.seed, one.strategy.name) == (1, "lesson") else rising(one)
    )
    figures = design.study(results, {}).table()
    shown = group_table(figures[(figures["group"] == "strategies") & (figures["beta"] == 1.0)], design.rules)
    fedavg, lesson = shown.to_dict("records")
    assert lesson["time to 70% (s)"] == lesson["uploads to 70%"] == lesson["energy to 70% (kJ)"] == "1 of 2 seeds"
    assert (lesson["time ratio"], fedavg["time ratio"]) == ("–", "reference")
    assert fedavg["time to 70% (s)"] == "600 / 700"


def test_points_kilojoules_and_ratios_as_they_are_shown(tmp_path: Path) -> None:
    """LESSON ends 5 and 15 points above FedAvg. It reaches 70 % at 400 s, after 4 · 2.5 kJ."""
    design = small(tmp_path)

    def better(settings: Settings) -> list[float]:
        more = {0: 0.05, 1: 0.15}.get(settings.run.seed, 0.0) if settings.strategy.name == "lesson" else 0.0
        return [at + more * (at > 0.1) for at in rising(settings)]

    figures = design.study(everything(design, better), {}).table()
    at_1 = figures[(figures["group"] == "strategies") & (figures["beta"] == 1.0)]
    assert list(at_1["accuracy_gain"]) == pytest.approx([0.0, 0.1])
    lesson = group_table(at_1, design.rules).to_dict("records")[1]
    assert lesson == {
        "entry": "lesson",
        "settings": "deadline_s = 10",
        "accuracy at 400 s (%)": "85.0 / 95.0",
        "accuracy at 800 s (%)": "85.0 / 95.0",
        "time to 50% (s)": "300 / 300",
        "time to 70% (s)": "400 / 400",
        "uploads to 70%": "40 / 40",
        "energy to 70% (kJ)": "10.0 / 10.0",
        "time ratio": "0.57 / 0.67",
        "accuracy gain (points)": "5.0 / 15.0",
    }


def test_one_lucky_seed_makes_no_reference(tmp_path: Path) -> None:
    design = small(tmp_path)
    lucky = (20.0, 0)
    results = everything(
        design,
        lambda one: (
            [0.8 if (one.strategy.deadline_s, one.run.seed) == lucky else 0.6] * 4
            + [0.6 if one.strategy.deadline_s == 20.0 else 0.8] * 4
        ),
    )
    figures = design.study(results, {}).table().set_index(["beta", "entry"])
    assert figures.loc[(1.0, "lesson τ=20"), "time_to_0.7_seeds"] == 1
    assert figures.loc[(1.0, "lesson τ=20"), "reference"] == "lesson τ=10"


def test_without_a_time_the_most_accurate_is_the_reference(tmp_path: Path) -> None:
    design = small(tmp_path)
    results = everything(design, lambda one: [0.4 if one.strategy.deadline_s == 20.0 else 0.3] * 8)
    figures = design.study(results, {}).table()
    assert set(figures[figures["group"] == "deadlines"]["reference"]) == {"lesson τ=20"}


def test_only_complete_entries_are_shown_and_missing_runs_are_counted(tmp_path: Path) -> None:
    design = small(tmp_path)
    whole = everything(design, rising)
    assert not missing_runs(design.study(whole, {}))
    kept = {name: run for name, run in whole.items() if not name.startswith("fedavg") or run.seed == 100}
    kept.pop(run_name(design.by_name["lesson τ=20"].settings({}, 0.1, 1, design.rules)))
    part = design.study(kept, {})
    assert missing_runs(part) == {"fedavg": 4, "lesson τ=20": 1}
    nothing = {"fedavg": 12, "lesson": 8, "lesson τ=10": 4, "lesson τ=20": 4}
    assert missing_runs(design.study({}, {})) == nothing
    figures = part.table()
    assert set(figures["entry"]) == {"lesson", "lesson τ=10"}
    assert set(figures["reference"]) == {"", "lesson τ=10"}
    page = write_tuned(part, tmp_path, suffixes=()).read_text()
    assert "the number of their missing runs: fedavg (4), lesson τ=20 (1)." in page
    assert "| lesson | deadline_s = 10 |" in page


def test_a_run_that_diverged_at_once_is_drawn_and_counted(tmp_path: Path) -> None:
    design = small(tmp_path)
    results = everything(design, rising)
    settings = design.by_name["lesson τ=10"].settings({}, 1.0, 0, design.rules)
    results[run_name(settings)] = made(settings, [], "no longer finite")  # before its first evaluation
    study = design.study(results, {})
    figures = study.table()
    page = write_tuned(study, tmp_path, [".svg"]).read_text()
    assert "| lesson τ=10 (1 of 2 collapsed, 1 diverged) | – | 80.0 | 80.0 |" in page
    row = figures.set_index(["beta", "entry"]).loc[(1.0, "lesson τ=10")]
    assert row["accuracy_at_800"] == pytest.approx(0.8)
    assert (row["collapsed"], row["diverged"]) == (1, 1)


def test_runs_that_all_diverged_are_drawn_to_the_end(tmp_path: Path) -> None:
    design = small(tmp_path)
    results = everything(design, rising)
    for seed in (0, 1):
        settings = design.by_name["lesson τ=10"].settings({}, 1.0, seed, design.rules)
        results[run_name(settings)] = made(settings, [0.1, 0.8], "no longer finite")
    study = design.study(results, {})
    rows = study.table()
    figure = draw_curves(study, design.groups[1], rows[rows["group"] == "deadlines"])
    (line,) = [line for line in figure.axes[1].lines if line.get_label() == "lesson τ=10"]
    assert np.asarray(line.get_xydata())[-1] == pytest.approx([0.8, 0.1])


COLLAPSES = {
    "rises to 80 %": ([0.1, 0.2, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8], False),
    "ends at 21 %, above twice 10 %": ([0.1, 0.2, 0.3, 0.3, 0.3, 0.21, 0.21, 0.21], False),
    "never learns": ([0.1] * 8, True),
    "ends at exactly 20 %": ([0.1] * 5 + [0.2] * 3, True),
    "falls from 80 % to 40 %, half of its best": ([0.8] * 5 + [0.4] * 3, True),
    "falls from 80 % to 41 %": ([0.8] * 5 + [0.41] * 3, False),
    "one good evaluation is not its best": ([0.4, 0.4, 1.0, 0.4, 0.4, 0.41, 0.41, 0.41], False),
    "has only two evaluations": ([0.1, 0.9], False),
}


@pytest.mark.parametrize("case", COLLAPSES)
def test_which_runs_have_collapsed(case: str, tmp_path: Path) -> None:
    accuracies, collapsed = COLLAPSES[case]
    design = small(tmp_path)
    settings = design.by_name["lesson τ=10"].settings({}, 1.0, 0, design.rules)
    assert has_collapsed(made(settings, accuracies), 800.0) == collapsed
    assert has_collapsed(made(settings, accuracies, "no longer finite"), 800.0)


def test_only_what_happened_up_to_a_time_decides_whether_a_run_has_collapsed(tmp_path: Path) -> None:
    design = small(tmp_path)
    settings = design.by_name["lesson τ=10"].settings({}, 1.0, 0, design.rules)
    run = made(settings, [0.5, 0.5, 0.5, 0.1, 0.1, 0.1, 0.9, 0.9])
    assert [has_collapsed(run, time_s) for time_s in (300.0, 600.0, 800.0)] == [False, True, False]


def test_collapsed_runs_are_counted_and_not_averaged(tmp_path: Path) -> None:
    """Of five seeds of FedAvg, two end at 10 %; the others at 50, 60 and 70 %, 60 ± 4.303·10/√3 = ±24.8 points.

    LESSON has 70 % with seeds 0 to 3 and collapses with seed 4, so the pairs are those of seeds 0 to 2:
    20, 10 and 0 points, 10 ± 24.8. A collapsed run reaches no target, even one that was at 60 % before.
    """
    design = small(tmp_path, FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2, 3, 4]"))

    def outcome(settings: Settings) -> list[float]:
        if settings.strategy.name == "fedavg":
            last = [0.5, 0.6, 0.7, 0.1, 0.1][settings.run.seed % 100]
            return [0.6] * 4 + [last] * 4
        return [0.7 if settings.run.seed != 4 else 0.1] * 8

    figures = design.study(everything(design, outcome), {}).table()
    rows = figures[(figures["group"] == "strategies") & (figures["beta"] == 1.0)]
    fedavg, lesson = group_table(rows, design.rules).to_dict("records")
    assert fedavg["entry"] == "fedavg (2 of 5 collapsed)"
    assert fedavg["accuracy at 400 s (%)"] == "60.0 ± 0.0"
    assert fedavg["accuracy at 800 s (%)"] == "60.0 ± 24.8"
    assert fedavg["time to 50% (s)"] == "3 of 5 seeds"
    assert lesson["entry"] == "lesson (1 of 5 collapsed)"
    assert lesson["accuracy gain (points)"] == "10.0 ± 24.8"
    assert list(rows["accuracy_gain_seeds"]) == [3, 3]


@pytest.mark.parametrize(("lost", "reference"), [(0, "lesson τ=10"), (1, "lesson τ=20")])
def test_a_reference_with_fewer_collapsed_runs_is_preferred(lost: int, reference: str, tmp_path: Path) -> None:
    """Nobody reaches 70 %. τ = 10 s ends at 65 % and τ = 20 s at 40 %, but one run of τ = 10 s collapses: with it, the
    mean of five is still 54 %."""
    design = small(tmp_path, FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2, 3, 4]"))

    def outcome(settings: Settings) -> list[float]:
        ten = settings.strategy.deadline_s == 10.0
        return [0.1 if ten and settings.run.seed < lost else 0.65 if ten else 0.4] * 8

    figures = design.study(everything(design, outcome), {}).table()
    assert set(figures[figures["group"] == "deadlines"]["reference"]) == {reference}


def test_two_runs_that_are_left_are_both_shown_and_none_is_a_dash(tmp_path: Path) -> None:
    design = small(tmp_path, FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    lost = {0: 1, 1: 3}

    def outcome(settings: Settings) -> list[float]:
        collapses = settings.run.seed < lost[int(settings.strategy.name == "fedavg")]
        return [0.1 if collapses else 0.5 + settings.run.seed / 10] * 8

    figures = design.study(everything(design, outcome), {}).table()
    rows = figures[(figures["group"] == "strategies") & (figures["beta"] == 1.0)]
    fedavg, lesson = group_table(rows, design.rules).to_dict("records")
    assert (fedavg["entry"], fedavg["accuracy at 800 s (%)"]) == ("fedavg (3 of 3 collapsed)", "–")
    assert (lesson["entry"], lesson["accuracy at 800 s (%)"]) == ("lesson (1 of 3 collapsed)", "60.0 / 70.0")
    assert lesson["accuracy gain (points)"] == "–"


def test_several_tuning_seeds_and_fewer_collapses_win(tmp_path: Path) -> None:
    """δ = 0.05 has 40, 50 and 60 %; δ = 0.1 has 90 % twice and collapses once, so it loses."""
    text = FILE.replace("tuning_seeds = [100]", "tuning_seeds = [100, 101, 102]").replace("[1.0, 0.5]", "[1.0]")
    design = small(tmp_path, text)
    case = Case(design.by_name["fedavg"], 1.0, design.rules)
    assert len(case.tuning()) == 2 * 3
    values = {0.05: (0.4, 0.5, 0.6), 0.1: (0.9, 0.9, 0.1)}
    runs = {
        name: made(settings, [values[settings.training.learning_rate][settings.run.seed - 100]] * 4)
        for name, settings in case.tuning().items()
    }
    low, high = case.scores(runs)
    assert low is not None
    assert high is not None
    assert (low.value, low.collapsed, high.value, high.collapsed) == pytest.approx((0.5, 0, 0.9, 1))
    assert case.chosen(runs) == {"training.learning_rate": 0.05, "strategy.fraction": 1.0}
    assert {one.run.time_budget_s for one in case.tuning().values()} == {400.0}
    runs.pop(list(runs)[-1])
    assert case.scores(runs)[1] is None
    assert case.num_missing(runs) == 1 + 2
    assert case.finals(runs) is None


def test_winners_at_an_end_of_their_list_are_listed(tmp_path: Path) -> None:
    """δ = 0.4 is best at β = 0.1, δ = 0.2 at β = 1; a list of two values has no inside."""
    text = FILE.replace("[0.05, 0.1]", "[0.1, 0.2, 0.4]")
    design = small(tmp_path, text)

    def outcome(settings: Settings) -> list[float]:
        best = {0.1: 0.4, 1.0: 0.2}[settings.data.beta]
        return [0.6 if settings.training.learning_rate == best else 0.5] * 8

    study = design.study(everything(design, outcome), {})
    assert at_ends(study, "training.learning_rate") == {("fedavg", 0.1): True, ("fedavg", 1.0): False}
    assert at_ends(study, "strategy.fraction") == {}
    write_tuned(study, tmp_path, suffixes=())
    said = (tmp_path / "settings.md").read_text()
    assert said.endswith("- `training.learning_rate`: 1 of 2 cases; fedavg, β = 0.1\n")


def test_rows_are_by_time_at_the_last_beta_then_by_accuracy(tmp_path: Path) -> None:
    times = {"slow": 700.0, "worse": math.nan, "better": math.nan, "fast": 400.0}
    rows = [
        {"beta": beta, "entry": name, "time_to_0.7": time if beta == 1.0 else place, "accuracy_at_800": 0.1 * place}
        for beta in (0.1, 1.0)
        for place, (name, time) in enumerate(times.items())
    ]
    assert _order(pd.DataFrame(rows), small(tmp_path)) == ["fast", "slow", "better", "worse"]


def test_a_page_is_written_before_any_run_is_done(tmp_path: Path) -> None:
    page = write_tuned(small(tmp_path).study({}, {}), tmp_path).read_text()
    assert "fedavg (12)" in page
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.slow
def test_figures_tables_and_settings_are_the_same_on_any_day(tmp_path: Path) -> None:
    design = small(tmp_path)
    results = everything(design, rising)
    lost = run_name(design.by_name["fedavg"].settings(design.by_name["fedavg"].points[0], 1.0, 100, design.rules))
    results[lost] = replace(results[lost], diverged="no longer finite")
    study = design.study(results, {})
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        write_tuned(study, folder, [".png", ".pdf", ".svg"])
    files = {path.name: path.read_bytes() for path in folders[0].iterdir()}
    assert files == {path.name: path.read_bytes() for path in folders[1].iterdir()}
    drawn = {f"{kind}-{group}.{end}" for kind in ("accuracy", "times") for group in ("strategies", "deadlines")
             for end in ("png", "pdf", "svg")}  # fmt: skip
    texts = {"README.md", "board.html", "settings.md", "table.csv", "table-strategies.md", "table-deadlines.md"}
    assert files.keys() == drawn | texts
    rows = settings_table(study).to_dict("records")
    assert [row["β = 1"] for row in rows] == [
        "diverged",
        "**33.3%**",
        "10.0% (collapsed)",
        "33.3%",
        "56.7%",
        "**80.0%**",
        *["not tuned"] * 2,
    ]
    assert len(pd.read_csv(folders[0] / "table.csv")) == 2 * 4


def test_twelve_lines_look_different() -> None:
    names = ["fedavg", "fedcs", "lesson", *map(str, range(9))]
    assert len(set(line_looks(names))) == 12
