"""Random words and the minibatches drawn from them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lesson.learn.counters import key, philox, words
from lesson.learn.dropout import draw_factors
from lesson.learn.minibatch import NO_SAMPLE, Sampler, sample_weights
from lesson.learn.partition import Partition


@pytest.mark.parametrize(
    ("counter", "secret", "expected"),
    [
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_known_answers_of_philox(counter: list[int], secret: tuple[int, int], expected: list[int]) -> None:
    """Philox 4×32-10, from the authors' Random123."""
    drawn = philox(tuple(torch.tensor([word]) for word in counter), secret)
    assert [int(word[0]) for word in drawn] == expected


def test_words_depend_on_their_own_ids_alone() -> None:
    def draw(seed: int, name: str, *ids: list[int]) -> torch.Tensor:
        return words(key(seed, name), 7, *map(torch.tensor, ids))

    some, alone = draw(0, "x", [1, 2], [5, 6], [0, 3]), draw(0, "x", [2], [6], [3])
    assert some.shape == (2, 7)
    assert torch.equal(some[1:], alone)
    for other in (some[:1], draw(0, "y", [2], [6], [3]), draw(1, "x", [2], [6], [3])):
        assert not torch.equal(alone, other)
    many = words(key(0, "even"), 1000, torch.arange(100))
    assert 0 <= many.min() <= many.max() < 2**32
    assert many.double().mean() / 2**32 == pytest.approx(0.5, abs=0.005)


def test_dropout_keeps_a_quarter_and_the_mean() -> None:
    clients, zero = torch.arange(50).repeat_interleave(20), torch.zeros(1000, dtype=torch.int64)
    factors = draw_factors(key(0, "dropout"), 4096, clients, zero, torch.arange(20).repeat(50))
    assert factors.shape == (1000, 4096)
    assert set(factors.unique().tolist()) == {0.0, 4.0}
    assert float(factors.mean()) == pytest.approx(1.0, abs=0.005)
    alone = draw_factors(key(0, "dropout"), 4096, torch.tensor([7]), torch.tensor([0]), torch.tensor([3]))
    assert torch.equal(factors[7 * 20 + 3], alone[0])
    assert not torch.equal(factors[0], factors[1])


def sampler(sizes: list[int], batch_size: int, epochs: bool = False, seed: int = 0) -> Sampler:
    parts = np.split(np.arange(1000, 1000 + sum(sizes)), np.cumsum(sizes)[:-1])
    return Sampler.of(Partition.of(parts), batch_size, epochs, seed)


def batches(draws: Sampler, clients: list[int], index: list[int], step: int) -> Any:
    given = torch.tensor(clients), torch.tensor(index)
    return draws.batches(*given, step + 1, num_passes=step + 1)[step].numpy()


def one(draws: Sampler, client: int, index: int = 0, step: int = 0) -> Any:
    return batches(draws, [client], [index], step)[0]


@given(st.integers(1, 40), st.integers(1, 30), st.integers(0, 1000), st.integers(0, 3))
def test_minibatches_follow_floyds_algorithm(size: int, batch_size: int, index: int, step: int) -> None:
    """Turn by turn as Floyd wrote it, from the same words, for the second of two clients."""
    draws = sampler([7, size], batch_size)
    count = min(size, batch_size)
    random = words(key(0, "minibatch"), draws.width, *map(torch.tensor, ([step], [index], [1])))
    chosen: list[int] = []
    for turn in range(count):
        bound = size - count + turn
        number = (int(random[0, turn]) * (bound + 1)) >> 32
        chosen.append(bound if number in chosen else number)
    batch = one(draws, 1, index, step)
    assert [int(sample) - 1007 for sample in batch[:count]] == chosen
    assert np.all(batch[count:] == NO_SAMPLE)


def test_batch_depends_on_seed_client_index_and_step_alone() -> None:
    draws, everybody = sampler([40] * 9, 10), list(range(9))
    together = batches(draws, everybody, everybody, 3)
    for client in (0, 4, 8):
        assert np.array_equal(one(draws, client, client, 3), together[client])
    assert len({tuple(one(draws, 0, index, step)) for index in range(5) for step in range(5)}) == 25
    assert not np.array_equal(together, batches(sampler([40] * 9, 10, seed=1), everybody, everybody, 3))


def test_epoch_visits_every_sample_once_in_a_new_order() -> None:
    """13 samples in batches of 5: cuts of 5, 5 and 3, then the next pass."""
    draws = sampler([13], 5, epochs=True)
    cuts = [[sample for sample in one(draws, 0, step=step) if sample != NO_SAMPLE] for step in range(6)]
    assert [len(cut) for cut in cuts] == [5, 5, 3, 5, 5, 3]
    first, second = (np.concatenate(part) for part in (cuts[:3], cuts[3:]))
    assert sorted(first) == sorted(second) == list(range(1000, 1013))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("epochs", [False, True])
@pytest.mark.parametrize("batch_size", [5, 100])
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


def test_width_of_minibatches_is_at_most_the_largest_number_of_samples() -> None:
    assert sampler([30, 7], 10**9).width == 30, "a batch larger than any client's data takes no more memory"


def test_samples_of_a_minibatch_share_its_weight() -> None:
    """3 among two samples, 5 for a single one; a minibatch without samples and one that does not count have none."""
    padded = torch.tensor([[7, 0, NO_SAMPLE], [4, NO_SAMPLE, NO_SAMPLE], [NO_SAMPLE] * 3, [1, 2, 3]])
    weights = sample_weights(padded, torch.tensor([3.0, 5.0, 0.0, 0.0]))
    assert weights.tolist() == [[1.5, 1.5, 0.0], [5.0, 0.0, 0.0], [0.0] * 3, [0.0] * 3]
