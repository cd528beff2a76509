"""CA²FL on four clients: weights, caches and models of four aggregations, worked out by hand.

Clients take 5, 16, 30 and 38 s and all train at the same time. The buffer holds three updates.
"""

from typing import Any

import numpy as np
import pytest
import torch

from helpers.fleets import make_fleet, peak_bytes, traced
from lesson import CA2FL, FedBuff, InputError, Settings, Simulation
from lesson.core.arrays import FloatArray
from lesson.learn.group_memory import GroupVectors
from lesson.strategies.base import Merge, Updates

UPDATES = {0: [3, 6, 9, 12, 0, 0, 3, 9], 1: [9, 11], 2: [10], 3: [6]}
"""Δ of each client's local trainings, in order."""


class OneNumber:
    """A model server whose model is one number, 0 at first, and whose updates are those of UPDATES."""

    def __init__(self) -> None:
        self.models, self.merges = [torch.zeros(1)], list[Merge]()
        self.groups = GroupVectors(self.models[0])

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> list[Any]:
        assert merge.groups is not None
        means = {name: torch.zeros(1) for name in merge.groups.names}
        for (client, index), weight in zip(updates.keys, weights.tolist(), strict=True):
            means[f"client {client}"] += weight * UPDATES[client][index]
        self.models.append(self.groups.merge(self.models[-1], means, merge.groups, "updates"))
        self.merges.append(merge)
        return []

    def forget(self, version: int) -> None:
        pass

    def signals(self, names: frozenset[str], version: int) -> dict[str, Any]:
        return {}


def run(strategy: CA2FL, rounds: int, latencies_s: list[float] | None = None) -> tuple[Simulation, OneNumber]:
    server = OneNumber()
    fleet = make_fleet(latencies_s or [5.0, 16.0, 30.0, 38.0])
    simulation = Simulation(strategy, fleet, model_server=server)  # type: ignore[arg-type]
    for _ in range(rounds):
        simulation.step()
    return simulation, server


def test_models_and_caches() -> None:
    """Buffers, in the order of arrival, with h̄ = Σ h / 4:

    1. Client 0 with 3, 6, 9: v = 0 + 18/3 = 6. Its cache is the mean, h₀ = 6, so h̄ = 1.5.
    2. Client 1 with 9 and 0 with 12, 0: v = 1.5 + (9 + (12 − 6) + (0 − 6))/3 = 4.5; h₀ = 6, h₁ = 9, h̄ = 3.75.
    3. Client 2 with 10, 0 with 0, 1 with 11: v = 3.75 + (10 + (0 − 6) + (11 − 9))/3 = 5.75; h = 0, 11, 10, h̄ = 5.25.
    4. Client 0 with 3, 3 with 6, 0 with 9: v = 5.25 + (3 + 6 + 9)/3 = 11.25; h = 6, 11, 10, 6.
    """
    _, server = run(CA2FL(buffer_size=3, concurrency=4), 11)
    assert [float(model) for model in server.models] == pytest.approx([0, 6, 10.5, 16.25, 27.5])
    caches = {name: float(vector) for name, vector in server.groups.filled.items()}
    assert caches == pytest.approx({"client 0": 6, "client 1": 11, "client 2": 10, "client 3": 6})
    assert float(server.groups.total) == pytest.approx(33)  # type: ignore[arg-type]


def test_weights() -> None:
    """Second buffer: client 1 once and client 0 twice, η = 0.6: shares 0.6/3 and 0.6·2/3; h̄ has the weight 0.6/4."""
    _, server = run(CA2FL(buffer_size=3, concurrency=4, server_lr=0.6), 6)
    merge = server.merges[1]
    assert merge.groups is not None
    assert merge.weights.tolist() == [1.0, 0.5, 0.5]
    assert merge.groups.names == ["client 1", "client 0", "client 0"]
    assert merge.groups.weights == pytest.approx({"client 1": 0.2, "client 0": 0.4})
    assert merge.groups.previous == pytest.approx({"client 1": -0.2, "client 0": -0.4})
    assert merge.groups.previous_total == pytest.approx(0.15)
    assert (merge.of, merge.step_scale) == ("updates", 1.0)


def test_clients_start_and_rounds_close_as_in_fedbuff() -> None:
    latencies_s = [(1.0 + who) ** 0.37 for who in range(12)]
    ours, theirs = (
        [
            (record.end_s, record.started.tolist(), record.merged.tolist(), record.staleness.tolist())
            for record in (simulation.step() for _ in range(40))
        ]
        for simulation in (Simulation(kind(4, 3), make_fleet(latencies_s)) for kind in (CA2FL, FedBuff))
    )
    assert ours == theirs


def test_unreachable_clients_do_not_count() -> None:
    _, server = run(CA2FL(buffer_size=3, concurrency=4), 3, [5.0, 16.0, 30.0, 38.0, np.inf])
    assert server.merges[0].groups.previous_total == 1 / 4  # type: ignore[union-attr]


def test_clients_that_take_turns_all_count(tmp_path: Any) -> None:
    """Clients 0 and 1 leave at 20 s, when 2 and 3 come: never more than two at a time, but four have trained."""
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 0,0,20 1,0,20 2,20,inf 3,20,inf")
    simulation = Simulation(CA2FL(1, 2), make_fleet([5.0] * 4), settings=Settings(presence=presence))
    merges: list[Merge] = []
    decide = simulation.strategy.merge
    simulation.strategy.merge = lambda view, arrived: merges.append(decide(view, arrived)) or merges[-1]  # type: ignore[method-assign,func-returns-value]
    while simulation.now_s < 30:
        simulation.step()
    totals = [merge.groups.previous_total for merge in merges if merge.groups is not None]
    assert (totals[0], totals[-1]) == (1 / 2, 1 / 4)


def test_the_cost_depends_on_the_clients_involved() -> None:
    simulation = Simulation(CA2FL(buffer_size=3, concurrency=4), make_fleet([1.0 + who for who in range(50_000)]))
    assert peak_bytes(simulation) < 50_000


def test_bad_settings() -> None:
    with pytest.raises(InputError, match=r"^server_lr must be a finite number > 0, got 0$"):
        CA2FL(server_lr=0)
