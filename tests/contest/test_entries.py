"""Entries are read, and wrong ones told before anything is run."""

from pathlib import Path

import pytest
from made_up import FILE, small

from lesson.contest.cases import Case
from lesson.contest.entries import load_contest, point_words
from lesson.contest.rules import MAX_POINTS
from lesson.errors import InputError
from lesson.paper.results import Results
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


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("[0.05, 0.1]", "[0.05, 0.1, 0.2, 0.3]", "entry 'fedavg' must have 1 to 6 points, got 8"),
        ("[0.05, 0.1]", "[]", "entry 'fedavg' must have 1 to 6 points, got 0"),
        ("[0.05, 0.1]", "[0.1, 0.1]", "entry 'fedavg' must have points that differ"),
        ("strategy.fraction", "strategy.fractoin", "setting of strategy fedavg 'fractoin' is unknown; did you mean"),
        ("strategy.fraction", "run.rounds", "a point's key must be one of scenario, strategy, server, a dot and a key"),
        ('name = "lesson"\ngroup', 'name = "fedavg"\ngroup', "names of entries must differ, got 'fedavg' twice"),
        ('group = "deadlines"', 'group = "deadline"', "group 'deadline' is unknown; did you mean 'deadlines'?"),
        ('references = ["fedavg"]', 'references = ["fedavgs"]', "entry 'fedavgs' is unknown; did you mean 'fedavg'?"),
        ("points =", "point =", "key of an entry 'point' is unknown; did you mean 'points'?"),
        ("seeds = [0, 1]", "seeds = [0, 100]", "tuning_seed must not be one of seeds, got 100"),
        ("seeds = [0, 1]", "", "rules must have a value for each of dataset"),
        ("betas = [0.1, 1.0]", "betas = []", "betas must not be empty"),
    ],
)
def test_wrong_entries_are_told(old: str, new: str, complaint: str, tmp_path: Path) -> None:
    assert old in FILE
    with pytest.raises(InputError, match=r"entries\.toml: ") as error:
        small(tmp_path, FILE.replace(old, new, 1))
    assert complaint in str(error.value)


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
    assert all(len(entry.points) <= MAX_POINTS for entry in contest.entries)
    taking_part = {entry.sections["strategy"]["name"] for entry in contest.select(["strategies"])}
    assert taking_part <= set(STRATEGIES)
    assert {"fedavg", "fedcs", "lesson", "lesson-memory", "fedbuff"} <= taking_part
    assert {len(entry.points) for entry in contest.select(["deadlines"])} == {1}
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
            every_s, tau_s = settings.run.eval_every_s, settings.scenario.deadline_s
            rounds = [-int(-look * every_s // tau_s) for look in range(1, int(settings.run.time_budget_s / every_s))]
            for tier in (2, 3):
                due = sum(number % tier == 0 for number in rounds) / len(rounds)
                assert due < 1.4 / tier, (entry.name, tau_s, tier)
