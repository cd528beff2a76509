import numpy as np
import pytest
import torch

from lesson.learn.counters import key, philox, words

# Known answers of Philox 4×32-10 from the authors' Random123: counter, key, words.
KNOWN = [
    ([0] * 4, [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "secret", "expected"), KNOWN)
def test_known_answers_on_numpy_and_torch(counter: list[int], secret: list[int], expected: list[int]) -> None:
    arrays = philox(tuple(np.array([word]) for word in counter), (secret[0], secret[1]))
    tensors = philox(tuple(torch.tensor([word]) for word in counter), (secret[0], secret[1]))
    assert [int(word[0]) for word in arrays] == expected
    assert [int(word[0]) for word in tensors] == expected


def test_words_depend_on_their_own_ids_alone() -> None:
    some = words(key(0, "x"), 7, np.array([1, 2]), np.array([5, 6]), np.array([0, 3]))
    alone = words(key(0, "x"), 7, np.array([2]), np.array([6]), np.array([3]))
    assert some.shape == (2, 7)
    assert np.array_equal(some[1:], alone)
    assert not np.array_equal(some[0], some[1])
    assert not np.array_equal(alone, words(key(0, "y"), 7, np.array([2]), np.array([6]), np.array([3])))
    assert not np.array_equal(alone, words(key(1, "x"), 7, np.array([2]), np.array([6]), np.array([3])))


def test_words_are_even() -> None:
    drawn = words(key(0, "even"), 1000, np.arange(100))
    assert drawn.min() >= 0
    assert drawn.max() < 2**32
    assert drawn.mean() / 2**32 == pytest.approx(0.5, abs=0.005)
