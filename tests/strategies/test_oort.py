"""Oort on four clients, with scripted draws and losses, written out by hand.

Client 0 takes 5 s, 1 takes 16 s, 2 takes 30 s, 3 takes 38 s; each has 100 samples.
"""

import math
from typing import Any

import numpy as np
import pytest

from helpers.fleets import Scripted, disconnecting, make_fleet
from helpers.scripted import Served, SignalServer
from helpers.strategies import follow
from lesson import make_loop, simulate
from lesson.core.arrays import FloatArray, IntArray
from lesson.strategies import Oort

LATENCIES = [5.0, 16.0, 30.0, 38.0]


def losses(by_version: dict[int, dict[int, float]]) -> SignalServer:
    """A server with these losses by version and client."""
    return SignalServer(
        lambda version: {
            "update_loss": lambda updates: np.array([by_version[version][one] for one in updates.client.tolist()])
        }
    )


class Script:
    """A random generator with scripted draws, which records the probabilities of all candidates."""

    def __init__(self, draws: list[list[int]]) -> None:
        self.draws, self.chances = list(draws), list[dict[int, float]]()

    def choice(self, clients: IntArray, count: int, replace: bool, p: FloatArray) -> IntArray:
        self.chances.append(dict(zip(clients.tolist(), p.tolist(), strict=True)))
        drawn = self.draws.pop(0)
        assert len(drawn) == count
        assert not replace
        return np.array(drawn)


def shares(**weights: float) -> Any:
    return pytest.approx({int(name[1:]): weight / sum(weights.values()) for name, weight in weights.items()}, rel=1e-9)


def test_trace() -> None:
    """Two updates a round of three clients that start, one of them new: round(0.34 · 3) = 1.

    1: All are new; three are drawn by speed. Client 3 is late, as always: it is canceled at 30 s and stays new.
    2: One of the new clients 1 and 3 is drawn; the two known ones start without a draw.
    3: Client 3 is the only new one. U is 100, 400 and 125, clipped at 125 + 0.9 · 275 = 372.5. T, half-way between 16
       and 30 s, is 23 s, so that client 2 counts (23/30)². The second largest utility, 0.244, times 0.95 admits all.
    4: U is 100, 100 and 125, clipped at 122.5.
    5: Rounds 1 and 2 have achieved 325 + 500, rounds 3 and 4 200 + 200: T, at three quarters, is 32 s. U is 100 for
       all.
    """
    ones = {0: 1.0, 1: 1.0, 2: 1.0}
    server = losses({0: {0: 2.0, 2: 1.25}, 1: {0: 1.0, 1: 4.0}, 2: ones, 3: ones, 4: ones})
    script = Script([[0, 2, 3], [1], [1, 0], [2, 0], [0, 1]])
    strategy = Oort(2, 1.5, exploration=0.34, exploration_decay=1, preferred_share=0.5, pacer_step=0.25, pacer_window=2)
    run = follow(strategy, make_fleet(LATENCIES), 5, rng=script, server=server)
    assert run.rounds == [
        (30.0, [0, 2, 3], [0, 2]),
        (46.0, [0, 1, 2], [0, 1]),
        (62.0, [0, 1, 3], [0, 1]),
        (92.0, [0, 2, 3], [0, 2]),
        (108.0, [0, 1, 3], [0, 1]),
    ]
    assert [bool(record.note) for record in run.records] == [False] * 4 + [True]
    assert "23 s → 32 s" in run.records[-1].note
    assert script.chances == [
        shares(c0=1 / 5, c1=1 / 16, c2=1 / 30, c3=1 / 38),
        shares(c1=1 / 16, c3=1 / 38),
        shares(
            c0=0 + math.sqrt(0.1 * math.log(3) / 2),
            c1=272.5 / 300 + math.sqrt(0.1 * math.log(3) / 2),
            c2=(25 / 300 + math.sqrt(0.1 * math.log(3) / 1)) * (23 / 30) ** 2,
        ),
        shares(
            c0=0 + math.sqrt(0.1 * math.log(4) / 3),
            c1=0 + math.sqrt(0.1 * math.log(4) / 3),
            c2=(22.5 / 25 + math.sqrt(0.1 * math.log(4) / 1)) * (23 / 30) ** 2,
        ),
        shares(
            c0=1 + math.sqrt(0.1 * math.log(5) / 4),
            c1=1 + math.sqrt(0.1 * math.log(5) / 3),
            c2=1 + math.sqrt(0.1 * math.log(5) / 4),
        ),
    ]


def test_clients_below_the_cut_off_do_not_start() -> None:
    """Three of four clients are known after round 1. In round 2, U is 100, 200 and 900, clipped at 200 + 0.9 · 700 =
    830. With the same bonus for all, √(0.1 · ln 2) = 0.26, utilities are 0.26, 0.39 and 1.18, and client 2 is the only
    candidate for a draw of one. Client 3, still busy, is canceled."""
    strategy = Oort(3, 4 / 3, exploration=0, exploration_min=0, preferred_share=1.0)
    server = losses({0: {0: 1.0, 1: 2.0, 2: 9.0}})
    simulation = Served(make_loop(strategy, make_fleet(LATENCIES)), server)
    simulation.step()
    second: Any = simulation.strategy
    second.clients_per_round, second.overcommitment = 1, 1.0
    simulation.round = 2
    plan = second.open_round(simulation._view(np.arange(4)), Script([]))
    assert (plan.starts.tolist(), plan.drops.tolist()) == ([2], [3])


@pytest.mark.parametrize(
    ("strategy", "num_new"),
    [
        # Of 13 clients, all are new in round 1, and round(0.9 · 0.98 · 13) = 11 in round 2.
        (Oort(), 11),
        # Of 10 clients, round(0.5 · 0.1 · 10) = 0 would be new in round 2, but round(0.4 · 10) = 4 are.
        (Oort(10, 1.0, exploration=0.5, exploration_decay=0.1, exploration_min=0.4), 4),
    ],
)
def test_share_of_new_clients_falls_to_a_minimum(strategy: Oort, num_new: int) -> None:
    first, second = simulate(strategy, make_fleet([1.0 + client for client in range(100)]), rounds=2)
    assert (len(first.started), len(first.merged)) == (len(second.started), 10)
    assert len(set(second.started.tolist()) - set(first.merged.tolist())) == num_new


@pytest.mark.parametrize(("lost", "num_steps"), [([], [0, 0, 0, 0, 1, 1, 2]), ([2, 5], [0, 0, 0, 0, 0, 1, 1, 1, 2])])
def test_pacer_counts_rounds_with_aggregated_updates(lost: list[int], num_steps: list[int]) -> None:
    """With windows of two, losses of 4 + 4 are compared with 1 + 1, and these with 1 + 0.5. If the updates of rounds 3
    and 6 are lost, each comparison is made when two more updates have been aggregated, and only once."""
    server = losses({version: {0: loss} for version, loss in enumerate([4, 4, 1, 1, 1, 0.5, 0.5])})
    script = Scripted({(0, index): (0.5, 1.0) for index in lost})
    simulation = Served(disconnecting(Oort(1, 1.0, pacer_window=2), make_fleet([5.0]), script), server)
    seen = []
    for _ in num_steps:
        simulation.step()
        seen.append(simulation.strategy._num_steps)
    assert seen == num_steps


def test_without_losses_utility_is_the_number_of_samples() -> None:
    run = follow(Oort(2, 2.0), make_fleet(LATENCIES), 1)
    assert run.records[0].end_s == 16.0
    assert run.simulation.strategy._known == {0: (100.0, 1), 1: (100.0, 1)}


def test_updates_beyond_the_first_k_are_dropped() -> None:
    """Three arrive at the same time; two are aggregated, and nothing waits."""
    run = follow(Oort(2, 1.5), make_fleet([7.0, 7.0, 7.0]), 1)
    assert (run.records[0].merged.tolist(), run.records[0].uploads) == ([0, 1], 3)
    assert not len(run.simulation.ledger.at_server)
