"""TiFL on four clients, with scripted draws and accuracies, written out by hand.

Tier 1 is client 0, which takes 5 s, and 1, 16 s; tier 2 is client 2, 30 s, and 3, 38 s.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, traced
from helpers.scripted import SignalServer
from helpers.strategies import follow
from lesson import Settings, simulate
from lesson.strategies import TiFL


class Accuracies(dict[str, Any]):
    """Signals of which `client_accuracy` is looked up when it is read: other versions must not be evaluated."""

    def __init__(self, by_version: dict[int, list[float]], version: int) -> None:
        super().__init__(client_accuracy=None)
        self.by_version, self.version = by_version, version

    def __getitem__(self, name: str) -> Any:
        return np.array(self.by_version[self.version])


def accuracies(by_version: dict[int, list[float]]) -> SignalServer:
    return SignalServer(lambda version: Accuracies(by_version, version))


class Script:
    """A random generator with scripted draws of tiers, which records their probabilities."""

    def __init__(self, tiers: list[int]) -> None:
        self.tiers, self.chances = list(tiers), list[dict[int, float]]()

    def choice(self, tiers: list[int], p: Any) -> int:
        self.chances.append(dict(zip(tiers, np.round(p, 9).tolist(), strict=True)))
        assert self.tiers[0] in tiers
        return self.tiers.pop(0)


def test_trace() -> None:
    """Evaluations before rounds 1, 3 and 5, at versions 0, 2 and 4. The second: tier 2, drawn last, has gone from 0.1
    to 0.2. The third: tier 1, drawn last, stays at (0.5 + 0.3) / 2, so that tier 2, less accurate, gets 2/3 and tier 1
    gets 1/3. Nothing changes until the next evaluation."""
    server = accuracies({0: [0.1, 0.1, 0.1, 0.1], 2: [0.5, 0.3, 0.2, 0.2], 4: [0.4, 0.4, np.nan, 0.2]})
    script, fleet = Script([0, 1, 0, 0, 1, 1]), make_fleet([5.0, 16.0, 30.0, 38.0])
    run = follow(TiFL(num_tiers=2, interval=2), fleet, 6, rng=script, server=server)
    assert [(end_s, merged) for end_s, _, merged in run.rounds] == [
        (16.0, [0, 1]),
        (54.0, [2, 3]),
        (70.0, [0, 1]),
        (86.0, [0, 1]),
        (124.0, [2, 3]),
        (162.0, [2, 3]),
    ]
    assert [bool(record.note) for record in run.records] == [False] * 4 + [True, False]
    assert script.chances == [{0: 0.5, 1: 0.5}] * 4 + [{0: 0.333333333, 1: 0.666666667}] * 2


def test_only_tiers_with_credits_are_ranked() -> None:
    """Tier 1 has used up its two credits when nothing has been gained: tiers 2 and 3, equal, get 2/3 and 1/3. Then tier
    2 has none left either."""
    server, script = accuracies({version: [0.5] * 3 for version in (0, 2, 4)}), Script([0, 0, 1, 1, 2])
    strategy = TiFL(num_tiers=3, interval=2, credits=2)
    run = follow(strategy, make_fleet([1.0, 2.0, 3.0]), 5, rng=script, server=server)
    assert [record.end_s for record in run.records] == [1.0, 2.0, 4.0, 6.0, 9.0]
    third = 0.333333333
    assert script.chances[:2] == [{0: third, 1: third, 2: third}] * 2
    assert script.chances[2:] == [{1: 0.666666667, 2: third}] * 2 + [{2: 1.0}]


def test_tier_absent_at_an_evaluation_can_be_drawn_later(tmp_path: Path) -> None:
    """Tier 2 is absent at the evaluation before round 3, at 32 s. From 40 s on it is the only one, until 230 s, when
    round 8 ends. Then both are present, and tier 2, ranked first, is twice as likely."""
    rows = "client,from_s,to_s 0,0,40 1,0,40 0,200,inf 1,200,inf 2,40,inf 3,40,inf"
    presence = traced(tmp_path / "presence.csv", rows)
    server = accuracies({version: [0.5, 0.5, 0.1, 0.1] for version in range(9)})
    script, fleet = Script([0, 0, 0, 1, 1, 1, 1, 1, 0]), make_fleet([16.0, 16.0, 38.0, 38.0])
    settings = Settings(presence=presence)
    follow(TiFL(num_tiers=2, interval=2), fleet, 9, rng=script, server=server, settings=settings)
    assert script.chances == [{0: 1.0}] * 3 + [{1: 1.0}] * 5 + [{0: 0.333333333, 1: 0.666666667}]


def test_run_without_accuracy_uses_all_credits() -> None:
    """Ten rounds of each tier, 160 + 380 s, then a round in which nobody starts: the run is over."""
    records = list(simulate(TiFL(num_tiers=2, credits=10), make_fleet([5.0, 16.0, 30.0, 38.0]), rounds=50))
    assert len(records) == 21
    drawn = [max(record.merged.tolist()) for record in records[:-1]]
    assert (drawn.count(1), drawn.count(3)) == (10, 10)
    assert records[-1].end_s == pytest.approx(540)
    assert "credits" in records[-1].note


def test_clients_are_drawn_from_one_tier() -> None:
    fleet = make_fleet([40.0, np.inf, 10.0, 20.0, 30.0, 50.0, 60.0], weight=[1, 1, 2, 3, 4, 5, 6])
    pairs = [set(record.merged.tolist()) for record in simulate(TiFL(2, clients_per_round=2), fleet, rounds=100)]
    assert {tuple(sorted(pair)) for pair in pairs} == {(2, 3), (2, 4), (3, 4), (0, 5), (0, 6), (5, 6)}
