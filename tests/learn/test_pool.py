import numpy as np
import pytest
import torch

from lesson import Settings
from lesson.learn.partition import draw_pool, make_partition

LABELS = np.tile([0, 0, 0, 1, 7], 400)


def shares(samples: np.ndarray) -> np.ndarray:
    return np.array([np.mean(LABELS[samples] == label) for label in (0, 1, 7)])


def test_a_client_draws_by_its_own_shares_of_the_classes() -> None:
    pool = draw_pool(LABELS, np.full(6, 5000), 1.0, seed=3)
    for client in range(6):
        samples = pool[client]
        assert len(samples) == 5000
        ends = np.concatenate([[0], pool.thresholds[client] / 2**32, [1]])
        # The standard deviation of a share p is √(p(1 − p)/5000) < 0.0071.
        assert np.all(np.abs(shares(samples) - np.diff(ends)) < 5 * 0.0071)
        for label in (0, 1, 7):
            members, drawn = np.sum(label == LABELS), samples[LABELS[samples] == label]
            expected = members * (1 - (1 - 1 / members) ** len(drawn))  # different samples among so many even draws
            assert len(np.unique(drawn)) == pytest.approx(expected, rel=0.05)


def test_a_client_holds_the_same_in_a_larger_fleet_and_at_any_position() -> None:
    small, large = (draw_pool(LABELS, np.full(num, 40), 0.3, seed=1) for num in (5, 5000))
    assert np.array_equal(small[4], large[4])
    assert not np.array_equal(small[4], small[3])
    assert not np.array_equal(small[4], draw_pool(LABELS, np.full(5, 40), 0.3, seed=2)[4])
    some = large.lookup("cpu")(torch.tensor([[4], [4999]]), torch.tensor([[7, 3]]))
    assert some.tolist() == [[large[4][7], large[4][3]], [large[4999][7], large[4999][3]]]


@pytest.mark.parametrize(("beta", "largest"), [(0.05, (0.9, 1.0)), (1000.0, (0.33, 0.45))])
def test_beta_says_how_unequal_shares_are(beta: float, largest: tuple[float, float]) -> None:
    pool = draw_pool(LABELS, np.full(400, 100), beta, seed=0)
    ends = np.concatenate([np.zeros((400, 1)), pool.thresholds / 2**32, np.ones((400, 1))], axis=1)
    low, high = largest
    assert low < np.diff(ends).max(axis=1).mean() <= high


def test_the_settings_say_how_many_samples_each_client_holds() -> None:
    settings = Settings(split="dirichlet-pool", samples_per_client=(10, 30), num_clients=2000)
    held = make_partition(settings, len(LABELS), LABELS, 2000, seed=0)
    assert held.num_samples.min() == 10
    assert held.num_samples.max() == 30
    assert len(held[77]) == held.num_samples[77]
