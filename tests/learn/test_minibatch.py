import numpy as np

from lesson.learn.minibatch import NO_SAMPLE, Sampler
from lesson.learn.partition import Partition


def sampler(sizes: list[int], batch_size: int, epochs: bool = False, seed: int = 0) -> Sampler:
    parts = np.split(np.arange(1000, 1000 + sum(sizes)), np.cumsum(sizes)[:-1])
    return Sampler(Partition.of(parts), batch_size, epochs, seed)


def one(client: int, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return np.array([client]), np.array([index])


def test_batches_hold_a_clients_own_samples_once() -> None:
    draws = sampler([30, 50], 20)
    for client, low, high in ((0, 1000, 1030), (1, 1030, 1080)):
        for index in range(50):
            batch = draws.batches(*one(client, index), 0)[0]
            assert len(set(batch)) == 20
            assert batch.min() >= low
            assert batch.max() < high


def test_every_sample_is_drawn_equally_often() -> None:
    draws = sampler([12], 5)
    counts = np.bincount(
        np.concatenate([draws.batches(*one(0, index), 0)[0] for index in range(4000)]) - 1000, minlength=12
    )
    # 4000 · 5 / 12 = 1667 each; the standard deviation is √(4000 · 5/12 · 7/12) = 31.
    assert np.all(np.abs(counts - 4000 * 5 / 12) < 5 * 31)


def test_a_batch_depends_on_seed_client_index_and_step_alone() -> None:
    draws = sampler([40] * 9, 10)
    together = draws.batches(np.arange(9), np.arange(9), 3)
    for client in (0, 4, 8):
        assert np.array_equal(draws.batches(*one(client, client), 3)[0], together[client])
    first = set(map(tuple, [draws.batches(*one(0, index), step)[0] for index in range(5) for step in range(5)]))
    assert len(first) == 25
    assert not np.array_equal(together, sampler([40] * 9, 10, seed=1).batches(np.arange(9), np.arange(9), 3))


def test_a_client_with_few_samples_gives_them_all() -> None:
    batches = sampler([3, 20], 5).batches(np.array([0, 1]), np.array([0, 0]), 0)
    assert sorted(batches[0, :3]) == [1000, 1001, 1002]
    assert batches[0, 3:].tolist() == [NO_SAMPLE, NO_SAMPLE]
    assert np.all(batches[1] != NO_SAMPLE)


def test_a_pass_visits_every_sample_once_in_a_new_order() -> None:
    """13 samples in batches of 5: cuts of 5, 5 and 3, then the next pass."""
    draws = sampler([13], 5, epochs=True)
    cuts = [draws.batches(*one(0), step)[0] for step in range(6)]
    sizes = [int(np.count_nonzero(cut != NO_SAMPLE)) for cut in cuts]
    assert sizes == [5, 5, 3, 5, 5, 3]
    first, second = (np.concatenate(part)[np.concatenate(part) != NO_SAMPLE] for part in (cuts[:3], cuts[3:]))
    assert sorted(first) == sorted(second) == list(range(1000, 1013))
    assert first.tolist() != second.tolist()
