"""REFL on small fleets, with scripted ties and deviations, written out by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, traced
from helpers.scripted import SignalServer
from helpers.strategies import Run
from helpers.strategies import follow as follow_run
from lesson import Fleet, Settings, simulate
from lesson.core.arrays import FloatArray
from lesson.strategies import Refl
from lesson.strategies.base import Updates

BOOST = 1 - math.exp(-1)
"""Of the stale update with the largest deviation."""


class Deviations(SignalServer):
    """Provides scripted deviations by client, and records which updates were fresh and stale."""

    def __init__(self, deviations: dict[int, float]) -> None:
        self.deviations, self.asked = deviations, list[tuple[list[int], list[int]]]()
        super().__init__(lambda _: {"update_deviation": self.update_deviation})

    def update_deviation(self, fresh: Updates, stale: Updates) -> FloatArray:
        self.asked.append((fresh.client.tolist(), stale.client.tolist()))
        return np.array([self.deviations[client] for client in stale.client.tolist()])


class InOrder:
    """Breaks ties in favor of the lowest number."""

    def random(self, count: int) -> FloatArray:
        return np.arange(count) / count


def follow(strategy: Refl, fleet: Fleet, rounds: int, server: Any = None, **options: Any) -> Run:
    run = follow_run(strategy, fleet, rounds, rng=InOrder(), server=server, **options)
    assert {merge.of for merge in run.merges} == {"updates"}
    return run


def test_trace() -> None:
    """Clients take 5, 16, 30 and 38 s. Two start, the faster one closes the round, and a start holds a client off for
    one round.

    1: Ties go to 0 and 1. 2: Client 0 is held off, so 2 and 3 start; client 1 arrives at 16 s, a round late.
    3: Client 2 is held off. 4: Only 0 and 2 are idle; 3 arrives at 43 s, two rounds late. 5: 0 and 3 start.
    6: Only 0 is idle; 1, which started in round 3, arrives at 51 s. In each round, one update is stale, so its Λ is
    Λ_max, whatever it is.
    """
    server = Deviations({1: 0.1, 3: 7.0})
    run = follow(Refl(1, 2.0, hold_off=1), make_fleet([5.0, 16.0, 30.0, 38.0]), 6, server)
    assert run.rounds == [
        (5.0, [0, 1], [0]),
        (35.0, [2, 3], [1, 2]),
        (40.0, [0, 1], [0]),
        (45.0, [0, 2], [3, 0]),
        (50.0, [0, 3], [0]),
        (55.0, [0], [1, 0]),
    ]
    assert server.asked == [([2], [1]), ([0], [3]), ([0], [1])]
    late = {age: 0.65 / (age + 1) + 0.35 * BOOST for age in (1, 2, 3)}
    assert [merge.weights.tolist() for merge in run.merges] == [
        [1.0],
        pytest.approx([late[1] / (late[1] + 1), 1 / (late[1] + 1)]),
        [1.0],
        pytest.approx([late[2] / (late[2] + 1), 1 / (late[2] + 1)]),
        [1.0],
        pytest.approx([late[3] / (late[3] + 1), 1 / (late[3] + 1)]),
    ]


@pytest.mark.parametrize(
    ("deviations", "beta", "scale"),
    [
        ({1: 0.5, 2: 2.0}, 0.35, [0.65 / 2 + 0.35 * (1 - math.exp(-0.25)), 0.65 / 2 + 0.35 * BOOST, 1]),
        ({1: 0.5, 2: 2.0}, 0.0, [1 / 2, 1 / 2, 1]),
        ({1: 0.5, 2: 2.0}, 1.0, [1 - math.exp(-0.25), BOOST, 1]),
        ({1: np.nan, 2: 2.0}, 0.35, [1 / 2, 0.65 / 2 + 0.35 * BOOST, 1]),
        ({1: np.nan, 2: np.nan}, 0.35, [1 / 2, 1 / 2, 1]),
        ({1: 0.0, 2: 0.0}, 0.35, [0.65 / 2, 0.65 / 2, 1]),
        (None, 0.35, [1 / 2, 1 / 2, 1]),
    ],
)
def test_weights_of_two_stale_updates(deviations: dict[int, float] | None, beta: float, scale: list[float]) -> None:
    """Clients 1 and 2, which take 6 and 7 s, arrive in round 2, which client 0, with 5 s, closes at 10 s; clients 0 to
    2 have 1, 2 and 4 samples."""
    server = None if deviations is None else Deviations(deviations)
    fleet = make_fleet([5.0, 6.0, 7.0], weight=[1, 2, 4])
    run = follow(Refl(1, 3.0, beta=beta), fleet, 2, server)
    assert run.rounds == [(5.0, [0, 1, 2], [0]), (10.0, [0], [1, 2, 0])]
    raw = np.array([2, 4, 1]) * scale
    assert run.merges[1].weights == pytest.approx((raw / raw.sum()).tolist())


def test_updates_that_are_too_old_are_dropped() -> None:
    """Client 1 arrives at 16 s, in round 4, three rounds late. It starts again in round 5."""
    run = follow(Refl(1, 2.0, max_staleness=2), make_fleet([5.0, 16.0]), 5)
    assert run.rounds[3:] == [(20.0, [0], [0]), (25.0, [0, 1], [0])]
    run = follow(Refl(1, 2.0, max_staleness=3), make_fleet([5.0, 16.0]), 4)
    assert run.rounds[3] == (20.0, [0], [1, 0])


def test_previously_absent_clients_start_first(tmp_path: Path) -> None:
    """Client 2 is absent when rounds 1 to 3 open, client 1 when round 2 does. With a hold-off of one round, 2 and 1
    alternate from then on."""
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 1,0,5 1,15,inf 2,25,inf")
    settings = Settings(presence=presence)
    run = follow(Refl(1, 1.0, hold_off=1), make_fleet([10.0, 10.0, 10.0]), 6, settings=settings)
    assert [record.started.tolist() for record in run.records] == [[0], [0], [1], [2], [1], [2]]


def test_round_has_a_limit() -> None:
    """Client 1, with 30 s, arrives in round 5, four rounds late; a round without fresh updates aggregates it alone."""
    run = follow(Refl(2, 1.0, round_limit_s=10.0), make_fleet([5.0, 30.0]), 5)
    assert [record.end_s for record in run.records] == [10, 15, 20, 25, 30]
    assert sorted(run.records[-1].merged.tolist()) == [0, 1]
    run = follow(Refl(round_limit_s=10.0), make_fleet([30.0]), 4, Deviations({}))
    assert run.rounds == [(10.0, [0], []), (20.0, [], []), (30.0, [], [0]), (40.0, [0], [])]
    assert [merge.weights.tolist() for merge in run.merges] == [[], [], [1.0], []]


@pytest.mark.parametrize(("arrives_s", "third"), [(45.0, [0, 1]), (48.0, [0, 1, 3])])
def test_fewer_clients_start_if_stale_updates_are_expected(arrives_s: float, third: list[int]) -> None:
    """Client 2 is late. At 10 s, μ = 10 s, and it is not expected by 20 s. At 30 s, μ = 0.75·20 + 0.25·10 = 17.5 s. If
    it is expected by 47.5 s, round(1.5 · (2 − 1)) = 2 clients start, otherwise 3."""
    fleet = make_fleet([10.0, 10.0, arrives_s, 20.0, 20.0, 20.0])
    run = follow(Refl(2, 1.5, adaptive_target=True), fleet, 3)
    assert run.rounds == [
        (10.0, [0, 1, 2], [0, 1]),
        (30.0, [3, 4, 5], [3, 4, 5]),
        (40.0, third, [0, 1]),
    ]


def test_all_clients_are_equally_likely_if_none_is_ever_absent() -> None:
    """Each of 6 clients starts in 100 of 300 rounds of two, within four standard deviations, √(300 · 1/3 · 2/3) = 8."""
    started = [record.started for record in simulate(Refl(2, 1.0, hold_off=0), make_fleet([1.0] * 6), rounds=300)]
    assert np.all(np.abs(np.bincount(np.concatenate(started)) - 100) < 33)
