import numpy as np
import pytest
import torch

from helpers.small_tasks import tiny_workload
from helpers.trainers import make_cohort
from lesson.learn.counters import key, words
from lesson.learn.minibatch import NO_SAMPLE, Sampler, sample_weights
from lesson.learn.partition import Partition


def sampler(sizes: list[int], batch_size: int, epochs: bool = False, seed: int = 0) -> Sampler:
    parts = np.split(np.arange(1000, 1000 + sum(sizes)), np.cumsum(sizes)[:-1])
    return Sampler(Partition.of(parts), batch_size, epochs, seed)


def batches(draws: Sampler, clients: list[int], index: list[int], step: int) -> np.ndarray:
    drawn: np.ndarray = draws.batches(torch.tensor(clients), torch.tensor(index), step + 1, num_passes=step + 1)[
        step
    ].numpy()
    return drawn


def one(draws: Sampler, client: int, index: int = 0, step: int = 0) -> np.ndarray:
    row: np.ndarray = batches(draws, [client], [index], step)[0]
    return row


def test_batches_hold_a_clients_own_samples_once() -> None:
    draws = sampler([30, 50], 20)
    for client, low, high in ((0, 1000, 1030), (1, 1030, 1080)):
        for index in range(50):
            batch = one(draws, client, index)
            assert len(set(batch)) == 20
            assert batch.min() >= low
            assert batch.max() < high


def test_every_sample_is_drawn_equally_often() -> None:
    draws = sampler([12], 5)
    counts = np.bincount(np.concatenate([one(draws, 0, index) for index in range(1000)]) - 1000, minlength=12)
    # 1000 · 5 / 12 = 417 each; the standard deviation is √(1000 · 5/12 · 7/12) = 15.6.
    assert np.all(np.abs(counts - 1000 * 5 / 12) < 5 * 15.6)


def test_a_batch_depends_on_seed_client_index_and_step_alone() -> None:
    draws = sampler([40] * 9, 10)
    everybody = list(range(9))
    together = batches(draws, everybody, everybody, 3)
    for client in (0, 4, 8):
        assert np.array_equal(one(draws, client, client, 3), together[client])
    first = set(map(tuple, [one(draws, 0, index, step) for index in range(5) for step in range(5)]))
    assert len(first) == 25
    assert not np.array_equal(together, batches(sampler([40] * 9, 10, seed=1), everybody, everybody, 3))


def test_a_client_with_few_samples_gives_them_all() -> None:
    both = batches(sampler([3, 20], 5), [0, 1], [0, 0], 0)
    assert sorted(both[0, :3]) == [1000, 1001, 1002]
    assert both[0, 3:].tolist() == [NO_SAMPLE, NO_SAMPLE]
    assert np.all(both[1] != NO_SAMPLE)


def test_a_pass_visits_every_sample_once_in_a_new_order() -> None:
    """13 samples in batches of 5: cuts of 5, 5 and 3, then the next pass."""
    draws = sampler([13], 5, epochs=True)
    cuts = [one(draws, 0, step=step) for step in range(6)]
    sizes = [int(np.count_nonzero(cut != NO_SAMPLE)) for cut in cuts]
    assert sizes == [5, 5, 3, 5, 5, 3]
    first, second = (np.concatenate(part)[np.concatenate(part) != NO_SAMPLE] for part in (cuts[:3], cuts[3:]))
    assert sorted(first) == sorted(second) == list(range(1000, 1013))
    assert first.tolist() != second.tolist()


def test_draws_are_floyds_own() -> None:
    """Turn by turn as Floyd wrote it, from the same words: small sizes, where nearly everything is drawn twice."""
    for size, batch_size in ((5, 5), (7, 6), (30, 20), (3, 8)):
        draws = sampler([size], batch_size)
        for index in range(30):
            random = words(key(0, "minibatch"), batch_size, torch.tensor([0]), torch.tensor([index]), torch.tensor([0]))
            chosen: list[int] = []
            for turn in range(min(size, batch_size)):
                bound = size - min(size, batch_size) + turn
                number = (int(random[0, turn]) * (bound + 1)) >> 32
                chosen.append(bound if number in chosen else number)
            batch = one(draws, 0, index)
            assert [int(sample) - 1000 for sample in batch[: len(chosen)]] == chosen


@pytest.mark.parametrize("epochs", [False, True])
@pytest.mark.parametrize("batch_size", [5, 20, 100])
def test_minibatches_drawn_in_parts_are_the_same(epochs: bool, batch_size: int) -> None:
    draws = sampler([30, 7, 200], batch_size, epochs)
    clients, index, num_steps = torch.arange(3), torch.tensor([4, 0, 1]), 60
    whole = draws.batches(clients, index, num_steps, num_passes=num_steps)
    for size in (1, 7, 59):
        parts = [
            draws.batches(clients, index, min(size, num_steps - begin), num_passes=size + 1, begin=begin)
            for begin in range(0, num_steps, size)
        ]
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("epochs", [False, True])
def test_a_workload_draws_the_same_in_little_memory(epochs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tiny_workload(6, local_epochs=int(epochs))
    cohort = make_cohort(workload.initial_vector(), 6, steps=23)
    whole = workload.minibatches(cohort, 23)
    monkeypatch.setattr("lesson.learn.workload.MAX_DRAWN", 400)
    assert workload.steps_at_once(cohort) < 23
    assert torch.equal(workload.minibatches(cohort, 23), whole)
    assert torch.equal(torch.cat([workload.minibatches(cohort, 4, 3), workload.minibatches(cohort, 16, 7)]), whole[3:])


def test_a_batch_larger_than_any_clients_data_takes_no_more_memory() -> None:
    few, many = sampler([30, 7], 30), sampler([30, 7], 10**9)
    assert many.width == 30
    for client in range(2):
        assert np.array_equal(one(few, client, 3, 2), one(many, client, 3, 2))


def test_repeated_draws_are_found_by_sorting_as_by_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = sampler([70, 64, 40], 60)
    clients, index = torch.arange(3), torch.tensor([0, 5, 9])
    compared = draws.batches(clients, index, 20)
    monkeypatch.setattr("lesson.learn.minibatch.MAX_PAIRS", 1)
    assert torch.equal(draws.batches(clients, index, 20), compared)


def test_the_samples_of_a_minibatch_share_its_weight() -> None:
    """3 among two samples, 5 for a single one; a minibatch without samples and one that does not count have none."""
    padded = torch.tensor([[7, 0, NO_SAMPLE], [4, NO_SAMPLE, NO_SAMPLE], [NO_SAMPLE] * 3, [1, 2, 3]])
    weights = sample_weights(padded, torch.tensor([3.0, 5.0, 0.0, 0.0]))
    assert weights.tolist() == [[1.5, 1.5, 0.0], [5.0, 0.0, 0.0], [0.0] * 3, [0.0] * 3]
