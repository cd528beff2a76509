import numpy as np
import torch

from lesson.learn.counters import key, words
from lesson.learn.minibatch import NO_SAMPLE, Sampler
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
    counts = np.bincount(np.concatenate([one(draws, 0, index) for index in range(4000)]) - 1000, minlength=12)
    # 4000 · 5 / 12 = 1667 each; the standard deviation is √(4000 · 5/12 · 7/12) = 31.
    assert np.all(np.abs(counts - 4000 * 5 / 12) < 5 * 31)


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
