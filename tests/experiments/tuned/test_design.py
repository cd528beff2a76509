"""The file of a tuned comparison: wrong ones are reported before anything is run."""

import re
from pathlib import Path

import pytest

from helpers.engines import FakeEngine
from helpers.tuned import FILE, everything, small
from lesson.core.errors import InputError
from lesson.experiments.folder import MARKER
from lesson.experiments.missing import run_missing
from lesson.experiments.tuned.cases import Case
from lesson.experiments.tuned.design import TunedComparison
from lesson.experiments.tuned.entries import Entry, Point, point_words
from lesson.experiments.tuned.rules import Rules
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
    'points and grid must have keys "section.key" with one of fleet, radio, training, data, task, upload, '
    "server, strategy, faults, guards, got"
)
POINTS = '[{ "strategy.deadline_s" = 20.0 }, { "strategy.deadline_s" = 10.0 }]'


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "[0.05, 0.1]",
            "[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]",
            "entry 'fedavg': points and grid must give from 1 to 12 combinations, got 14",
        ),
        ("[0.05, 0.1]", "[]", "entry 'fedavg': points and grid must give from 1 to 12 combinations, got 0"),
        ("[0.05, 0.1]", "[0.1, 0.1]", "entry 'fedavg': points must be distinct, got fedavg-mnist-"),
        ("[0.05, 0.1]", "0.1", "entry 'fedavg': grid must be a table of lists, such as"),
        ("strategy.fraction", "strategy.fractoin", "[strategy] unknown setting 'fractoin' for fedavg; did you mean"),
        ("strategy.fraction", "run.rounds", f"entry 'fedavg': {KEYS} 'run.rounds'"),
        ('"strategy.fraction"', "fraction", f"entry 'fedavg': {KEYS} 'fraction'"),
        (POINTS, '{ "strategy.deadline_s" = 20.0 }', "entry 'lesson': points must be a list of tables, such as"),
        (POINTS, "[20.0, 10.0]", "entry 'lesson': points must be a list of tables, such as"),
        (POINTS, "[{ strategy.deadline_s = 20.0 }]", f"entry 'lesson': {KEYS} 'strategy'"),
        (
            POINTS,
            '[{ "data.beta" = 0.5 }]',
            "entry 'lesson': points and settings must not include beta, which the rules set",
        ),
        ('name = "lesson"\n', 'name = "_l"\n', "entry '_l': name must be at most 60 characters, the first a"),
        ('name = "lesson"\n', "name = 'a $x'\n", "entry 'a $x': name must be at most 60 characters, the first a"),
        ('name = "lesson"\n', 'name = "strategies"\n', "an entry must not have the name of a group, got 'strategies'"),
        ("points =", "point =", "entry 'lesson': unknown setting 'point'; did you mean 'points'?"),
        ('name = "lesson"\n', 'name = "fedavg"\n', "entries must have distinct names, got 'fedavg' twice"),
        ('name = "lesson"\n', "name = 3\n", "entry '3': name must be at most 60 characters, the first a"),
        ('name = "lesson"\n', 'name = ""\n', "entry '': name must be at most 60 characters, the first a"),
        ('name = "lesson"\n', "", "entry '': name must be at most 60 characters, the first a"),
        ('group = "deadlines"', 'group = "deadline"', "unknown group 'deadline'; did you mean 'deadlines'?"),
        ('{ name = "lesson" }', '"lesson"', "entry 'lesson': strategy must be a table, got 'lesson'"),
        (
            "deadline_s = 20.0 }\n",
            "deadline_s = 0.0 }\n",
            "entry 'lesson τ=20': [strategy] deadline_s must be > 0, got 0.0",
        ),
        ('references = ["fedavg"]', 'references = ["fedavgs"]', "unknown entry 'fedavgs'; did you mean 'fedavg'?"),
        ('references = ["fedavg"]', "references = []", "'strategies': references must be a list of entries, got []"),
        ('title = "Strategies"', 'titel = ""', "group 'strategies': title must be text, got None"),
        ('title = "Strategies"', 'title = "S"\ncolor = 1', "group 'strategies': unknown setting 'color'"),
        ("[groups.strategies]", '[groups."a/b"]', "group 'a/b': name must be letters, digits, - and _"),
        ("[rules]", "rule = 3\n[rules]", "unknown setting 'rule'; did you mean 'rules'?"),
        ("[rules]", "[rulez]", "rules must be a table, [rules], got None"),
        ("[rules]", "[rules", "cannot be read: Expected ']'"),
    ],
)
def test_invalid_entries_are_rejected(old: str, new: str, complaint: str, tmp_path: Path) -> None:
    assert old in FILE
    with pytest.raises(InputError, match=r"entries\.toml") as error:
        small(tmp_path, FILE.replace(old, new, 1))
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("dataset", '"mnits"', "unknown dataset 'mnits'; did you mean 'mnist'?"),
        ("betas", "0.1", "rules: betas must be a list of numbers > 0, got 0.1"),
        ("betas", "[]", "rules: betas must be a list of numbers > 0, got []"),
        ("betas", "[1.0, 0.0]", "rules: betas must be a list of numbers > 0, got 0.0"),
        ("betas", "[0.1, 0.1]", "rules: betas must be distinct, got 0.1 twice"),
        ("tuning_seeds", "[-1]", "rules: tuning_seeds must be a list of whole numbers >= 0, got -1"),
        ("tuning_seeds", "[]", "rules: tuning_seeds must be a list of whole numbers >= 0, got []"),
        ("tuning_seeds", "[100, 1]", "rules: tuning_seeds must not include any of seeds, got 1"),
        ("seeds", "[0, -1]", "rules: seeds must be a list of whole numbers >= 0, got -1"),
        ("seeds", "[0, 0]", "rules: seeds must be distinct, got 0 twice"),
        ("tuning_s", "0.0", "rules: tuning_s must be > 0, got 0.0"),
        ("tuning_s", "99.0", "rules: eval_every_s must be <= tuning_s and final_s, got 100"),
        ("final_s", "99.0", "rules: eval_every_s must be <= tuning_s and final_s, got 100"),
        ("final_s", "-1.0", "rules: final_s must be > 0, got -1.0"),
        ("eval_every_s", "0.0", "rules: eval_every_s must be > 0, got 0.0"),
        ("eval_every_s", "1e-4", "entry 'fedavg': [run] eval_every_s must be a number >= 0.001 or 'auto', got 0.0001"),
        ("looks_s", "[400.0, 801.0]", "rules: looks_s must increase up to final_s, 800, got [400.0, 801.0]"),
        ("looks_s", "[800.0, 400.0]", "rules: looks_s must increase up to final_s, 800, got [800.0, 400.0]"),
        ("looks_s", "[400.5, 800.0]", "rules: looks_s must be whole seconds and targets whole percentages"),
        ("targets", "[0.5, 0.3]", "rules: targets must increase, got [0.5, 0.3]"),
        ("targets", "[0.305]", "rules: looks_s must be whole seconds and targets whole percentages"),
        ("looks_s", '["end"]', "rules: looks_s must be a list of times > 0, got 'end'"),
        ("targets", "[0.5, 70.0]", "rules: targets must be a list of accuracies between 0 and 1, got 70.0"),
        ("targets", "[0.0]", "rules: targets must be a list of accuracies between 0 and 1, got 0.0"),
        ("targets", '["70 %"]', "rules: targets must be a list of accuracies between 0 and 1, got '70 %'"),
    ],
)
def test_invalid_rules_are_rejected(key: str, value: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        small(tmp_path, re.sub(rf"^{key} = .*", f"{key} = {value}", FILE, count=1, flags=re.MULTILINE))
    assert complaint in str(error.value)
    with pytest.raises(InputError, match=f"rules: {key} must be .*, got None"):
        small(tmp_path, re.sub(rf"^{key} = .*", "", FILE, count=1, flags=re.MULTILINE))


def test_a_file_may_have_a_single_tuning_seed(tmp_path: Path) -> None:
    """Files of version 0.1 have `tuning_seed = 100`."""
    design = small(tmp_path, FILE.replace("tuning_seeds = [100]", "tuning_seed = 100"))
    assert design.rules == small(tmp_path).rules
    with pytest.raises(InputError, match="unknown setting 'tuning_seed'; did you mean 'tuning_seeds'"):
        small(tmp_path, FILE.replace("tuning_seeds = [100]", "tuning_seed = 100\ntuning_seeds = [101]"))


def test_settings_are_made_at_every_beta_and_for_a_run_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, settings = set(), Entry.settings

    def noted(entry: Entry, point: Point, beta: float, seed: int, rules: Rules) -> Settings:
        tried.add((entry.name, beta, seed))
        return settings(entry, point, beta, seed, rules)

    monkeypatch.setattr(Entry, "settings", noted)
    design = small(tmp_path)
    assert tried == {(entry.name, beta, seed) for entry in design.entries for beta in (0.1, 1.0) for seed in (0, 100)}


def test_entries_are_chosen_by_name_or_group_in_the_order_of_the_file(tmp_path: Path) -> None:
    design = small(tmp_path)

    def chosen(*names: str) -> list[str]:
        """Return the entries whose runs are executed."""
        wanted = design.select(names).runs(done)
        return [
            case.entry.name
            for case in design.cases
            if case.beta == 1.0 and (case.finals(done) or {}).keys() <= wanted.keys()
        ]

    done = everything(design, lambda one: [0.8 if one.strategy.deadline_s == 5.0 else 0.1] * 8)
    assert chosen("lesson τ=10", "strategies") == ["fedavg", "lesson", "lesson τ=10", "lesson τ=20"]
    assert chosen("fedavg", "lesson τ=10") == ["fedavg", "lesson τ=10"]
    assert chosen() == [entry.name for entry in design.entries]
    with pytest.raises(InputError, match="unknown entry 'fedavgg'; did you mean 'fedavg'"):
        design.select(["fedavgg"])


def test_entries_that_come_to_the_same_runs_share_them(tmp_path: Path) -> None:
    """A tie: LESSON's first point, τ = 20, which is also an entry of its own."""
    done = everything(small(tmp_path), lambda _: [0.1] * 8)
    assert sum(run.seed == 0 and run.settings.strategy.name == "lesson" for run in done.values()) == 2 * 2


def test_study_toml_is_a_file_of_the_same_comparison(tmp_path: Path) -> None:
    """Its text is that of the file, comments included, also after several calls and with some entries only."""
    design = small(tmp_path, f"# mine\n{FILE}")
    for names in (["lesson"], []):
        run_missing(design.select(names), tmp_path / "out", FakeEngine(at_most=1))
    assert (tmp_path / "out" / MARKER).read_text().startswith(f"# mine\n{FILE}\n[study]\n")
    assert TunedComparison.load(tmp_path / "out" / MARKER) == design


def test_the_default_comparison() -> None:
    design = TunedComparison.load()
    assert {len(entry.points) for entry in design.entries if len(entry.points) > 1} == {6}
    assert {entry.group for entry in design.entries if len(entry.points) == 1} == {"deadlines"}
    strategies = {entry.strategy["name"] for entry in design.entries if entry.group == "strategies"}
    assert strategies <= set(STRATEGIES)
    assert {"fedavg", "fedcs", "lesson", "lesson-memory", "fedbuff"} <= strategies
    lesson = design.by_name["lesson τ=20"]
    assert list(Case(lesson, 1.0, design.rules).finals({}) or ()) == [f"lesson-cifar10-seed{seed}" for seed in range(5)]


def test_evaluations_are_not_in_step_with_the_slots_of_any_deadline() -> None:
    """Were all of them in even rounds, tier 2 would always just have been merged."""
    design = TunedComparison.load()
    for entry in design.entries:
        for point in entry.points:
            settings = entry.settings(point, 1.0, 0, design.rules)
            every_s, tau_s = settings.run.eval_every_s, settings.strategy.deadline_s
            rounds = [-int(-look * every_s // tau_s) for look in range(1, int(settings.run.time_budget_s / every_s))]
            for tier in (2, 3):
                due = sum(number % tier == 0 for number in rounds) / len(rounds)
                assert due < 1.4 / tier, (entry.name, tau_s, tier)


def test_entries_may_be_added_to_the_end_of_a_study_file(tmp_path: Path) -> None:
    """After its table [study], which may have a comment."""
    design = small(tmp_path)
    path = tmp_path / MARKER
    added = '\n[[entries]]\nname = "more"\ngroup = "deadlines"\nstrategy = { deadline_s = 30.0 }\n'
    path.write_text(f"{design.toml}\n[study] # by us\nformat = 1\nkind = 'tuned comparison'\n{added}")
    more = TunedComparison.load(path)
    assert [entry.name for entry in more.entries] == [*(entry.name for entry in design.entries), "more"]
    path.write_text(f"{more.toml}\n[study]\nformat = 1\n")
    assert TunedComparison.load(path) == more
