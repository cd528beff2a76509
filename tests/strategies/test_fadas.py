"""FADAS on four clients: rounds, step sizes and models, worked out by hand.

Clients take 5, 16, 30 and 38 s and all train at the same time. The buffer holds three updates.
"""

import numpy as np
import pytest
import torch

from helpers.fleets import make_fleet
from lesson import FADAS, InputError, Simulation
from lesson.learn.optimizers import ServerOptimizer
from lesson.settings.sections import ServerSettings
from lesson.strategies.base import Merge


def follow(strategy: FADAS, rounds: int) -> tuple[list[tuple[float, list[int], list[int]]], list[Merge]]:
    """End, aggregated clients and their staleness in each round with a full buffer, and the merges of these rounds."""
    merges: list[Merge] = []
    simulation = Simulation(strategy, make_fleet([5.0, 16.0, 30.0, 38.0]))
    decide = simulation.strategy.merge
    simulation.strategy.merge = lambda view, arrived: merges.append(decide(view, arrived)) or merges[-1]  # type: ignore[method-assign,func-returns-value]
    records = [simulation.step() for _ in range(rounds)]
    full = [(record.end_s, record.merged.tolist(), record.staleness.tolist()) for record in records if record.version]
    return [one for one in full if one[1]], [merge for merge in merges if len(merge.updates)]


def test_rounds_and_step_sizes() -> None:
    """The buffers of FedBuff. The largest staleness is 0, 1, 2, 3; above the threshold of 1, steps shrink to η/d."""
    trace, merges = follow(FADAS(buffer_size=3, concurrency=4), 11)
    assert trace == [
        (15.0, [0, 0, 0], [0, 0, 0]),
        (25.0, [1, 0, 0], [1, 0, 0]),
        (32.0, [2, 0, 1], [2, 0, 1]),
        (40.0, [0, 3, 0], [1, 3, 0]),
    ]
    assert [merge.step_scale for merge in merges] == [1.0, 1.0, 1 / 2, 1 / 3]
    for merge in merges:
        assert (merge.of, merge.groups, merge.weights.tolist()) == ("updates", None, [1 / 3] * 3)


@pytest.mark.parametrize(("threshold", "scales"), [(2, [1, 1, 1, 1 / 3]), (np.inf, [1] * 4), (0, [1, 1, 1 / 2, 1 / 3])])
def test_the_threshold(threshold: float, scales: list[float]) -> None:
    """An update that is stale by one version never changes the step: η/1 = η."""
    _, merges = follow(FADAS(buffer_size=3, concurrency=4, delay_threshold=threshold), 11)
    assert [merge.step_scale for merge in merges] == scales


def test_two_steps_by_hand() -> None:
    """β₁ = 0.5, β₂ = 0.75, ε = 0.5, η = 1.

    Δ = 2: m = 1, v = 0.25·4 = 1, v̂ = 1; w = 1/(1 + 0.5) = 2/3. Δ = 0 with half the step: m = 0.5, v = 0.75, but
    v̂ = 1; w = 2/3 + 0.5·0.5/1.5 = 5/6.
    """
    settings = ServerSettings(beta1=0.5, beta2=0.75, epsilon=0.5, learning_rate=1.0)
    optimizer = ServerOptimizer.of(settings, FADAS())
    first = optimizer.step(torch.zeros(1), torch.full((1,), 2.0))
    second = optimizer.step(first, first, 0.5)
    assert (float(first), float(second)) == pytest.approx((2 / 3, 5 / 6))
    moments = {name: float(vector) for name, vector in optimizer.moments.items()}
    assert moments == pytest.approx({"m": -0.5, "v": 0.75, "v_max": 1.0})  # m of the pseudo-gradient −Δ


def test_bad_settings() -> None:
    with pytest.raises(InputError, match=r"^delay_threshold must be a number >= 0, got -1$"):
        FADAS(delay_threshold=-1)
