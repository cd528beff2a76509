"""Entries are read, and wrong ones told before anything is run."""

import re
from pathlib import Path

import pytest

from helpers.contests import FILE, small
from lesson.core.errors import InputError
from lesson.experiments.contest.cases import Case
from lesson.experiments.contest.entries import Entry, Point, load_contest, point_words
from lesson.experiments.contest.rules import MAX_POINTS, Rules
from lesson.experiments.results import Results
from lesson.settings.settings import Settings
from lesson.strategies import STRATEGIES


def test_a_grid_gives_every_combination_in_order(tmp_path: Path) -> None:
    fedavg = small(tmp_path).by_name["fedavg"]
    assert [tuple(point.values()) for point in fedavg.points] == [(0.05, 1.0), (0.05, 0.5), (0.1, 1.0), (0.1, 0.5)]
    assert point_words(fedavg.points[0]) == "learning_rate = 0.05, fraction = 1"


def test_a_grid_is_combined_with_points(tmp_path: Path) -> None:
    more = 'server = { optimizer = "adam" }\npoints = [{ "server.epsilon" = 1e-5 }, { "server.epsilon" = 1e-4 }]\n'
    text = FILE.replace("[1.0, 0.5] }\n", f"[1.0] }}\n{more}")
    fedavg = small(tmp_path, text).by_name["fedavg"]
    assert [point_words(point) for point in fedavg.points][1:3] == [
        "learning_rate = 0.05, fraction = 1, server.epsilon = 0.0001",
        "learning_rate = 0.1, fraction = 1, server.epsilon = 1e-05",
    ]


KEYS = (
    "points and grid must have keys of one of fleet, radio, training, data, upload, "
    "server, strategy, faults, guards, a dot and a setting, "
    "in quotes, got"
)
POINTS = '[{ "strategy.deadline_s" = 20.0 }, { "strategy.deadline_s" = 10.0 }]'


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("[0.05, 0.1]", "[0.05, 0.1, 0.2, 0.3]", "entry 'fedavg': points and grid must give 1 to 6 settings, got 8"),
        ("[0.05, 0.1]", "[]", "entry 'fedavg': points and grid must give 1 to 6 settings, got 0"),
        ("[0.05, 0.1]", "[0.1, 0.1]", "entry 'fedavg': points must differ, got fedavg-mnist-"),
        ("[0.05, 0.1]", "0.1", "entry 'fedavg': grid must be a table of lists, such as"),
        ("strategy.fraction", "strategy.fractoin", "[strategy] setting 'fractoin' is unknown to fedavg; did you mean"),
        ("strategy.fraction", "run.rounds", f"entry 'fedavg': {KEYS} 'run.rounds'"),
        ('"strategy.fraction"', "fraction", f"entry 'fedavg': {KEYS} 'fraction'"),
        (POINTS, '{ "strategy.deadline_s" = 20.0 }', "entry 'lesson': points must be a list of tables, such as"),
        (POINTS, "[20.0, 10.0]", "entry 'lesson': points must be a list of tables, such as"),
        (POINTS, "[{ strategy.deadline_s = 20.0 }]", f"entry 'lesson': {KEYS} 'strategy'"),
        (POINTS, '[{ "data.beta" = 0.5 }]', "entry 'lesson': points and settings must leave beta to the rules"),
        ('name = "lesson"\n', 'name = "_l"\n', "entry '_l': name must be at most 60 letters, digits and signs,"),
        ('name = "lesson"\n', "name = 'a $x'\n", "entry 'a $x': name must be at most 60 letters, digits and signs,"),
        ('name = "lesson"\n', 'name = "strategies"\n', "an entry must not be called like a group, got 'strategies'"),
        ("points =", "point =", "entry 'lesson': setting 'point' is unknown; did you mean 'points'?"),
        ('name = "lesson"\n', 'name = "fedavg"\n', "names of entries must differ, got 'fedavg' twice"),
        ('name = "lesson"\n', "name = 3\n", "entry '3': name must be at most 60 letters, digits and signs,"),
        ('name = "lesson"\n', 'name = ""\n', "entry '': name must be at most 60 letters, digits and signs,"),
        ('name = "lesson"\n', "", "entry '': name must be at most 60 letters, digits and signs,"),
        ('group = "deadlines"', 'group = "deadline"', "group 'deadline' is unknown; did you mean 'deadlines'?"),
        ('{ name = "lesson" }', '"lesson"', "entry 'lesson': strategy must be a table, got 'lesson'"),
        (
            "deadline_s = 20.0 }\n",
            "deadline_s = 0.0 }\n",
            "entry 'lesson τ=20': [strategy] deadline_s must be > 0, got 0.0",
        ),
        ('references = ["fedavg"]', 'references = ["fedavgs"]', "entry 'fedavgs' is unknown; did you mean 'fedavg'?"),
        ('references = ["fedavg"]', "references = []", "'strategies': references must be a list of entries, got []"),
        ('title = "Strategies"', 'titel = ""', "group 'strategies': title must be text, got None"),
        ('title = "Strategies"', 'title = "S"\ncolor = 1', "group 'strategies': setting 'color' is unknown"),
        ("[groups.strategies]", '[groups."a/b"]', "group 'a/b': name must be letters, digits, - and _"),
        ("[rules]", "rule = 3\n[rules]", "setting 'rule' is unknown; did you mean 'rules'?"),
        ("[rules]", "[rulez]", "rules must be a table, [rules], got None"),
        ("[rules]", "[rules", "cannot be read: Expected ']'"),
    ],
)
def test_wrong_entries_are_told(old: str, new: str, complaint: str, tmp_path: Path) -> None:
    assert old in FILE
    with pytest.raises(InputError, match=r"entries\.toml") as error:
        small(tmp_path, FILE.replace(old, new, 1))
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("dataset", '"mnits"', "dataset 'mnits' is unknown; did you mean 'mnist'?"),
        ("betas", "0.1", "rules: betas must be a list of numbers > 0, got 0.1"),
        ("betas", "[]", "rules: betas must be a list of numbers > 0, got []"),
        ("betas", "[1.0, 0.0]", "rules: betas must be a list of numbers > 0, got 0.0"),
        ("betas", "[0.1, 0.1]", "rules: betas must differ, got 0.1 twice"),
        ("tuning_seed", "-1", "rules: tuning_seed must be >= 0, got -1"),
        ("tuning_seed", "1", "rules: tuning_seed must not be one of seeds, got 1"),
        ("seeds", "[0, -1]", "rules: seeds must be a list of whole numbers >= 0, got -1"),
        ("seeds", "[0, 0]", "rules: seeds must differ, got 0 twice"),
        ("tuning_s", "0.0", "rules: tuning_s must be > 0, got 0.0"),
        ("tuning_s", "99.0", "rules: eval_every_s must be <= tuning_s and final_s, got 100"),
        ("final_s", "99.0", "rules: eval_every_s must be <= tuning_s and final_s, got 100"),
        ("final_s", "-1.0", "rules: final_s must be > 0, got -1.0"),
        ("eval_every_s", "0.0", "rules: eval_every_s must be > 0, got 0.0"),
        ("eval_every_s", "1e-4", "entry 'fedavg': [run] eval_every_s must be a number >= 0.001 or 'auto', got 0.0001"),
        ("looks_s", "[400.0, 801.0]", "rules: looks_s must rise to final_s, 800, got [400.0, 801.0]"),
        ("looks_s", "[800.0, 400.0]", "rules: looks_s must rise to final_s, 800, got [800.0, 400.0]"),
        ("looks_s", "[400.5, 800.0]", "rules: looks_s must be whole seconds and targets whole percents"),
        ("targets", "[0.5, 0.3]", "rules: targets must rise, got [0.5, 0.3]"),
        ("targets", "[0.305]", "rules: looks_s must be whole seconds and targets whole percents"),
        ("looks_s", '["end"]', "rules: looks_s must be a list of times > 0, got 'end'"),
        ("targets", "[0.5, 70.0]", "rules: targets must be a list of accuracies between 0 and 1, got 70.0"),
        ("targets", "[0.0]", "rules: targets must be a list of accuracies between 0 and 1, got 0.0"),
        ("targets", '["70 %"]', "rules: targets must be a list of accuracies between 0 and 1, got '70 %'"),
    ],
)
def test_wrong_rules_are_told(key: str, value: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        small(tmp_path, re.sub(rf"^{key} = .*", f"{key} = {value}", FILE, count=1, flags=re.MULTILINE))
    assert complaint in str(error.value)
    with pytest.raises(InputError, match=f"rules: {key} must be .*, got None"):
        small(tmp_path, re.sub(rf"^{key} = .*", "", FILE, count=1, flags=re.MULTILINE))


def test_settings_are_made_at_every_beta_and_for_a_run_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, settings = set(), Entry.settings

    def noted(entry: Entry, point: Point, beta: float, seed: int, rules: Rules) -> Settings:
        tried.add((entry.name, beta, seed))
        return settings(entry, point, beta, seed, rules)

    monkeypatch.setattr(Entry, "settings", noted)
    contest = small(tmp_path)
    assert tried == {(entry.name, beta, seed) for entry in contest.entries for beta in (0.1, 1.0) for seed in (0, 100)}


def test_entries_are_chosen_by_name_or_group_in_the_order_of_the_file(tmp_path: Path) -> None:
    contest = small(tmp_path)
    assert [entry.name for entry in contest.select(["lesson τ=20", "strategies"])] == [
        "fedavg",
        "lesson",
        "lesson τ=20",
    ]
    assert contest.select([]) == contest.entries
    with pytest.raises(InputError, match="entry 'fedavgg' is unknown; did you mean 'fedavg'"):
        contest.select(["fedavgg"])


def test_the_contest_that_comes_with_the_package() -> None:
    contest = load_contest()
    assert {len(entry.points) for entry in contest.entries if len(entry.points) > 1} == {MAX_POINTS} == {6}
    assert {entry.group for entry in contest.entries if len(entry.points) == 1} == {"deadlines"}
    assert {len(entry.points) for entry in contest.select(["deadlines"])} == {1}
    taking_part = {entry.strategy["name"] for entry in contest.select(["strategies"])}
    assert taking_part <= set(STRATEGIES)
    assert {"fedavg", "fedcs", "lesson", "lesson-memory", "fedbuff"} <= taking_part
    lesson = contest.by_name["lesson τ=20"]
    assert list(Case(lesson, 1.0, contest.rules).finals(Results({})) or ()) == [
        f"lesson-cifar10-seed{seed}" for seed in range(5)
    ]


def test_evaluations_are_not_in_step_with_the_slots_of_any_deadline() -> None:
    """Were all of them in even rounds, tier 2 would always just have been merged."""
    contest = load_contest()
    for entry in contest.entries:
        for point in entry.points:
            settings = entry.settings(point, 1.0, 0, contest.rules)
            every_s, tau_s = settings.run.eval_every_s, settings.strategy.deadline_s
            rounds = [-int(-look * every_s // tau_s) for look in range(1, int(settings.run.time_budget_s / every_s))]
            for tier in (2, 3):
                due = sum(number % tier == 0 for number in rounds) / len(rounds)
                assert due < 1.4 / tier, (entry.name, tau_s, tier)
