"""Which samples each client holds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.small_tasks import tiny_task
from lesson import InputError, Settings, draw_population
from lesson.learn.partition import (
    Partition,
    draw_pool,
    make_partition,
    split_dirichlet_per_class,
    split_dirichlet_per_client,
    split_iid,
)
from lesson.runs.resolve import resolve


def labels(num: int, classes: int = 10) -> np.ndarray:
    return np.random.default_rng(1).integers(0, classes, num)


def check(partition: Partition, num_labels: int, everything: bool) -> None:
    assert len(np.unique(partition.samples)) == len(partition.samples), "a sample of two clients"
    assert partition.samples.min() >= 0
    assert partition.samples.max() < num_labels
    assert len(partition.samples) == num_labels or not everything
    assert partition.num_samples.sum() == len(partition.samples)


@settings(max_examples=15)
@given(st.integers(1, 40), st.sampled_from([0.1, 1.0, 10.0]), st.integers(0, 5))
def test_dirichlet_splits_give_each_client_enough_samples(num_clients: int, beta: float, seed: int) -> None:
    by_class = split_dirichlet_per_class(labels(8000), num_clients, beta, 10, seed)
    check(by_class, 8000, everything=True)
    assert len(by_class) == num_clients
    assert by_class.num_samples.min() >= 10
    wanted = np.arange(num_clients) + 30
    by_client = split_dirichlet_per_client(labels(4000), wanted, beta, seed)
    check(by_client, 4000, everything=False)
    assert np.array_equal(by_client.num_samples, wanted)


def test_per_class_follows_the_balance_rule() -> None:
    """Classes come in order; a client that held its average before a class has none of it."""
    truth = np.repeat(np.arange(10), 500)
    partition = split_dirichlet_per_class(truth, 20, 0.5, 5, seed=3)
    counts = np.array([np.bincount(truth[partition[client]], minlength=10) for client in range(20)])
    is_full = np.cumsum(counts, axis=1) - counts >= 5000 / 20
    assert is_full.any()
    assert np.all(counts[is_full] == 0)


def test_per_class_shares_are_dirichlet() -> None:
    """Before the rule bites, a client's share of class 0 has the variance of Dirichlet: (1/n)(1 − 1/n)/(nβ + 1)."""
    truth = np.repeat(np.arange(2), 20_000)
    shares = [
        np.count_nonzero(truth[split_dirichlet_per_class(truth, 10, 2.0, 1, seed)[0]] == 0) / 20_000
        for seed in range(400)
    ]
    assert np.mean(shares) == pytest.approx(0.1, abs=0.01)
    assert np.var(shares) == pytest.approx(0.1 * 0.9 / 21, rel=0.25)


def test_per_client_split_continues_when_classes_run_out() -> None:
    """All 1000 samples are asked for: the last clients get what is left, whatever their shares."""
    truth = np.repeat(np.arange(10), 100)
    partition = split_dirichlet_per_client(truth, np.full(10, 100), 0.1, seed=0)
    check(partition, 1000, everything=True)
    assert partition.num_samples.tolist() == [100] * 10


def test_per_client_split_of_a_seed_is_pinned() -> None:
    """A change here changes every result with this split that was ever published with a seed."""
    partition = split_dirichlet_per_client(np.arange(40) % 4, np.array([5, 5]), 0.5, seed=0)
    assert [partition[client].tolist() for client in range(2)] == [[1, 13, 19, 28, 31], [2, 6, 10, 22, 30]]


def test_smaller_beta_is_more_uneven() -> None:
    truth, largest_share = labels(20_000), []
    for beta in (0.1, 1.0, 10.0):
        partition = split_dirichlet_per_client(truth, np.full(20, 200), beta, seed=0)
        largest_share.append(np.mean([np.bincount(truth[partition[client]]).max() for client in range(20)]))
    assert largest_share == sorted(largest_share, reverse=True)


def test_iid_parts_differ_by_one_at_most() -> None:
    partition = split_iid(1003, 10, seed=0)
    check(partition, 1003, everything=True)
    assert set(partition.num_samples) == {100, 101}


@pytest.mark.parametrize("split", ["iid", "dirichlet-per-class", "dirichlet-per-client", "quantity-skew"])
def test_seed_determines_the_split(split: str) -> None:
    truth = labels(6000)
    chosen = Settings(split=split, samples_per_client=(50, 90), num_clients=20)
    first, again, other = (make_partition(chosen.with_changes(seed=seed), len(truth), truth) for seed in (0, 0, 1))
    assert len(first) == 20
    assert np.array_equal(first.samples, again.samples)
    assert not np.array_equal(first.samples, other.samples)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"split": "dirichlet-per-class", "num_clients": 400}, "num_clients must be at most 300"),
        ({"split": "dirichlet-per-class", "beta": 0.1, "num_clients": 290}, "one of 290 clients with fewer"),
        ({"split": "dirichlet-per-client"}, "samples_per_client requires 50000 samples"),
    ],
)
def test_invalid_splits_are_rejected(values: dict[str, object], message: str) -> None:
    chosen = Settings(**values)
    with pytest.raises(InputError, match=message):
        make_partition(chosen, 6000, labels(6000))


def test_run_trains_on_the_samples_of_its_population() -> None:
    chosen = Settings(num_clients=5, split="dirichlet-per-client", samples_per_client=(10, 30), rounds=1, device="cpu")
    run = resolve(chosen, tiny_task()).build()
    run.pipeline.close()
    drawn = draw_population(chosen)
    assert np.array_equal(run.evaluator.workload.holdings.num_samples, drawn.num_samples)
    assert np.array_equal(run.pipeline.loop.fleet.population.x_km, drawn.x_km)  # type: ignore[union-attr]


# A pool, in which each client draws its samples with replacement

LABELS = np.tile([0, 0, 0, 1, 7], 400)


def test_client_draws_by_its_own_shares_of_the_classes() -> None:
    pool = draw_pool(LABELS, np.full(6, 5000), 1.0, seed=3)
    for client in range(6):
        samples = pool[client]
        assert len(samples) == 5000
        shares = np.diff(np.concatenate([[0], pool.thresholds[client] / 2**32, [1]]))
        for label, share in zip((0, 1, 7), shares, strict=True):
            members, drawn = np.sum(label == LABELS), samples[LABELS[samples] == label]
            # The standard deviation of a share p is √(p(1 − p)/5000) < 0.0071.
            assert len(drawn) / 5000 == pytest.approx(share, abs=5 * 0.0071)
            expected = members * (1 - (1 - 1 / members) ** len(drawn))  # different samples among so many even draws
            assert len(np.unique(drawn)) == pytest.approx(expected, rel=0.05)


def test_clients_samples_do_not_depend_on_the_fleet() -> None:
    small, large = (draw_pool(LABELS, np.full(num, 40), 0.3, seed=1) for num in (5, 5000))
    assert np.array_equal(small[4], large[4])
    assert not np.array_equal(small[4], small[3])
    assert not np.array_equal(small[4], draw_pool(LABELS, np.full(5, 40), 0.3, seed=2)[4])
    some = large.lookup("cpu").samples(torch.tensor([4, 4999]), torch.tensor([[7, 3]]))
    assert some.tolist() == [[large[4][7], large[4][3]], [large[4999][7], large[4999][3]]]


def test_clients_of_a_pool_hold_as_many_samples_as_the_settings_say() -> None:
    chosen = Settings(split="dirichlet-pool", samples_per_client=(10, 30), num_clients=2000)
    held = make_partition(chosen, len(LABELS), LABELS)
    assert (held.num_samples.min(), held.num_samples.max()) == (10, 30)
    assert len(held[77]) == held.num_samples[77]
