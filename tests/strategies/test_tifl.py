"""TiFL on the four clients of the traces, with scripted draws and accuracies, written out by hand.

Tier 1 is client 0, which takes 5 s, and 1, 16 s; tier 2 is client 2, 30 s, and 3, 38 s.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, traced
from lesson import Fleet, InputError, Settings, Simulation, simulate
from lesson.strategies import TiFL
from lesson.strategies.base import RoundPlan, ServerView


class Told(Mapping[str, Any]):
    """Accuracies by version; keeps in mind which were looked at."""

    def __init__(self, accuracies: dict[int, list[float]], version: int, looks: list[int]) -> None:
        self.accuracies, self.version, self.looks = accuracies, version, looks

    def __getitem__(self, name: str) -> Any:
        self.looks.append(self.version)
        return np.array(self.accuracies[self.version])

    def __contains__(self, name: object) -> bool:
        return name == "client_accuracy"

    def __iter__(self) -> Iterator[str]:
        return iter(["client_accuracy"])

    def __len__(self) -> int:
        return 1


class FakeLearner:
    def __init__(self, accuracies: dict[int, list[float]]) -> None:
        self.accuracies, self.looks = accuracies, list[int]()

    def signals(self, names: frozenset[str], version: int) -> Told:
        assert names == {"client_accuracy"}
        return Told(self.accuracies, version, self.looks)

    def merge(self, *_: Any) -> list[Any]:
        return []

    def forget(self, version: int) -> None: ...


class Script:
    """A random generator with scripted draws of tiers, which records their probabilities."""

    def __init__(self, tiers: list[int]) -> None:
        self.tiers, self.chances = list(tiers), list[dict[int, float]]()

    def choice(self, tiers: list[int], p: Any) -> int:
        self.chances.append(dict(zip(tiers, np.round(p, 9).tolist(), strict=True)))
        assert self.tiers[0] in tiers
        return self.tiers.pop(0)


def run(
    strategy: TiFL, fleet: Fleet, script: Script, learner: Any, rounds: int, **options: Any
) -> list[tuple[float, list[int], str]]:
    decide = strategy.open_round

    def scripted(view: ServerView, rng: Any) -> RoundPlan:
        return decide(view, script)  # type: ignore[arg-type]

    strategy.open_round = scripted  # type: ignore[method-assign]
    simulation = Simulation(strategy, fleet, model_server=learner, **options)
    records = [simulation.step() for _ in range(rounds)]
    return [(record.end_s, sorted(record.merged.tolist()), record.note) for record in records if record]


def test_tifl() -> None:
    """Looks before rounds 1, 3 and 5, at versions 0, 2 and 4. The second: tier 2, drawn last, has gone from 0.1 to 0.2.
    The third: tier 1, drawn last, stays at (0.5 + 0.3) / 2, so that tier 2, less accurate, gets 2/3 and tier 1
    gets 1/3. Nothing changes until the next look."""
    accuracies = {0: [0.1, 0.1, 0.1, 0.1], 2: [0.5, 0.3, 0.2, 0.2], 4: [0.4, 0.4, np.nan, 0.2]}
    learner, script = FakeLearner(accuracies), Script([0, 1, 0, 0, 1, 1])
    strategy = TiFL(num_tiers=2, interval=2)
    assert run(strategy, make_fleet([5.0, 16.0, 30.0, 38.0]), script, learner, 6) == [
        (16.0, [0, 1], ""),
        (54.0, [2, 3], ""),
        (70.0, [0, 1], ""),
        (86.0, [0, 1], ""),
        (124.0, [2, 3], "tier 1 has not gained; from the least accurate: [2, 1]"),
        (162.0, [2, 3], ""),
    ]
    assert learner.looks == [0, 2, 4]
    assert script.chances == [{0: 0.5, 1: 0.5}] * 4 + [{0: 0.333333333, 1: 0.666666667}] * 2


def test_tifl_ranks_tiers_with_credits_alone() -> None:
    """Tier 1 has used up its two credits when nothing has been gained: tiers 2 and 3, equal, get 2/3 and 1/3. Then tier
    2 has none left either."""
    learner, script = FakeLearner({version: [0.5] * 3 for version in (0, 2, 4)}), Script([0, 0, 1, 1, 2])
    trace = run(TiFL(num_tiers=3, interval=2, credits=2), make_fleet([1.0, 2.0, 3.0]), script, learner, 5)
    assert [end_s for end_s, _, _ in trace] == [1.0, 2.0, 4.0, 6.0, 9.0]
    third = 0.333333333
    assert script.chances[:2] == [{0: third, 1: third, 2: third}] * 2
    assert script.chances[2:] == [{1: 0.666666667, 2: third}] * 2 + [{2: 1.0}]


def test_a_tier_that_is_absent_at_a_look_can_be_drawn_later(tmp_path: Path) -> None:
    """Tier 2 is absent at the look before round 3, at 32 s. From 40 s on it is the only one, until 230 s, when round 8
    ends. Then both are present, and tier 2, ranked first, is twice as likely."""
    rows = "client,from_s,to_s 0,0,40 1,0,40 0,200,inf 1,200,inf 2,40,inf 3,40,inf"
    presence = traced(tmp_path / "presence.csv", rows)
    learner = FakeLearner({version: [0.5, 0.5, 0.1, 0.1] for version in range(9)})
    script = Script([0, 0, 0, 1, 1, 1, 1, 1, 0])
    settings, fleet = Settings(presence=presence), make_fleet([16.0, 16.0, 38.0, 38.0])
    run(TiFL(num_tiers=2, interval=2), fleet, script, learner, 9, settings=settings)
    assert script.chances == [{0: 1.0}] * 3 + [{1: 1.0}] * 5 + [{0: 0.333333333, 1: 0.666666667}]


def test_tifl_without_accuracy_draws_evenly_until_credits_are_used_up() -> None:
    """Ten rounds of each tier, 160 + 380 s, then a round in which nobody starts: the run is over."""
    records = list(simulate(TiFL(num_tiers=2, credits=10), make_fleet([5.0, 16.0, 30.0, 38.0]), rounds=50))
    assert len(records) == 21
    drawn = [max(record.merged.tolist()) for record in records[:-1]]
    assert (drawn.count(1), drawn.count(3)) == (10, 10)
    assert records[-1].end_s == pytest.approx(540)
    assert records[-1].note == "every tier has used up its credits; no client is training and none can start"


def test_tifl_draws_clients_of_one_tier() -> None:
    fleet = make_fleet([40.0, np.inf, 10.0, 20.0, 30.0, 50.0, 60.0], weight=[1, 1, 2, 3, 4, 5, 6])
    pairs = [set(record.merged.tolist()) for record in simulate(TiFL(2, clients_per_round=2), fleet, rounds=300)]
    assert {frozenset(pair) for pair in pairs} == {
        frozenset(pair) for pair in ([2, 3], [2, 4], [3, 4], [0, 5], [0, 6], [5, 6])
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_tiers": 0}, "num_tiers must be a whole number >= 1, got 0"),
        ({"clients_per_round": 2.5}, "clients_per_round must be a whole number >= 1, got 2.5"),
        ({"interval": True}, "interval must be a whole number >= 1, got True"),
        ({"credits": -1}, "credits must be a whole number >= 1, got -1"),
        ({"num_tiers": 5}, "[strategy] num_tiers must be <= 4, the number of clients that can be reached, got 5"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        next(simulate(TiFL(**settings), make_fleet([5.0, 16.0, 30.0, 38.0]), rounds=1))
    assert str(caught.value) == message
