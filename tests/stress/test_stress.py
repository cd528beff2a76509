"""How stress tests draw their cases and judge outcomes; `make stress` runs the stress tests themselves."""

import math
import random
import time
import tomllib
from pathlib import Path

import pytest

from lesson import InputError
from lesson.settings.settings import SECTIONS, Settings
from tests.stress.command import Outcome
from tests.stress.folders import check_same
from tests.stress.settings import make_case, to_toml, valid_tables
from tests.stress.trial import Trial, try_all
from tests.stress.values import LEAVE_OUT, draw_edge, draw_valid, sections


def test_every_setting_has_values() -> None:
    """Of sections that are added, too; what is text has only its default."""
    rng, without = random.Random(0), []
    assert tuple(sections()) == SECTIONS
    for section, fields in sections().items():
        for name, field in fields.items():
            values = [draw_valid(f"{section}.{name}", field, rng) for _ in range(20)]
            if LEAVE_OUT in values:
                without.append(name)
            else:
                for value in values:
                    Settings(**{section: {name: value}})
    assert set(without) == {"latencies", "positions", "trace", "presence", "snr_trace"}


def test_most_of_what_shall_be_valid_is() -> None:
    rng, right = random.Random(1), 0
    for _ in range(300):
        try:
            Settings(**tomllib.loads(to_toml(valid_tables(rng))))
            right += 1
        except InputError:
            continue
    assert right >= 250


def test_edges_are_those_of_the_setting() -> None:
    field = sections()["server"]["estimate_quantile"]  # 0 < x <= 1
    drawn = {draw_edge(field, random.Random(seed)) for seed in range(50)}
    assert {0.0, 1.0, math.nextafter(0, 1), math.nextafter(1, 2)} <= drawn


def test_the_same_seed_makes_the_same_cases_and_all_kinds_of_them() -> None:
    cases = [make_case(random.Random(number)) for number in range(300)]
    assert [case.argv for case in cases] == [make_case(random.Random(number)).argv for number in range(300)]
    kinds = {"valid", "edge", "wrong", "unknown", "damaged", "contradictory", "nonsense"}
    assert {case.kind for case in cases} == kinds


@pytest.mark.parametrize(
    ("status", "err", "wrong"),
    [
        (0, "", ""),
        (2, "lesson: a must be b\n", ""),
        (2, "note: c\nlesson: a must be b\n", ""),
        (1, "", "status must be one of"),
        (2, "lesson: a\nlesson: b\n", "one line must be said, got 2"),
        (2, "", "one line must be said, got 0"),
        (2, "a must be b\n", "must begin with 'lesson: '"),
        (0, "Traceback (most recent call last):\n", "a traceback: lesson run"),
    ],
)
def test_what_a_command_may_say(status: int, err: str, wrong: str) -> None:
    outcome = Outcome(("run",), status, "", err, 0.0, 0.0, 0.0)
    if not wrong:
        assert outcome.check(0, 2) is outcome
        return
    with pytest.raises(AssertionError, match=wrong):
        outcome.check(0, 2)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # by newer Pythons, where there are threads
def test_trials_end_whatever_they_do(tmp_path: Path) -> None:
    def sleep(folder: Path, rng: random.Random) -> None:
        time.sleep(60)

    def draw(folder: Path, rng: random.Random) -> dict[str, float]:
        (folder / "file").touch()
        return {"drawn": rng.random()}

    trials = [Trial("a", "sleeps", sleep, limit_s=0.5), Trial("a", "draws", draw)]
    results = {one.trial.case: one for one in try_all(trials, 3, tmp_path, 2)}
    assert results["sleeps"].wrong == "not done after 0.5 s"
    assert results["draws"].facts == {"drawn": random.Random("3 a draws").random()}
    assert not list(tmp_path.iterdir())


def test_folders_that_differ_are_told(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("1\n")
        (tmp_path / name / "summary.json").write_text(f'{{"a": 1, "wall_s": {len(name)}}}')
    check_same(tmp_path / "one", tmp_path / "other")
    (tmp_path / "one" / "metrics.jsonl").write_text("2\n")
    with pytest.raises(AssertionError, match=r"metrics.jsonl must be those of the undisturbed run"):
        check_same(tmp_path / "one", tmp_path / "other")
    (tmp_path / "one" / ".lock").touch()
    with pytest.raises(AssertionError, match="files differ"):
        check_same(tmp_path / "one", tmp_path / "other")
