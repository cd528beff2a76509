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
def test_known_answers(counter: list[int], secret: list[int], expected: list[int]) -> None:
    drawn = philox(tuple(torch.tensor([word]) for word in counter), (secret[0], secret[1]))
    assert [int(word[0]) for word in drawn] == expected


def test_words_depend_on_their_own_ids_alone() -> None:
    some = words(key(0, "x"), 7, torch.tensor([1, 2]), torch.tensor([5, 6]), torch.tensor([0, 3]))
    alone = words(key(0, "x"), 7, torch.tensor([2]), torch.tensor([6]), torch.tensor([3]))
    assert some.shape == (2, 7)
    assert torch.equal(some[1:], alone)
    assert not torch.equal(some[0], some[1])
    assert not torch.equal(alone, words(key(0, "y"), 7, torch.tensor([2]), torch.tensor([6]), torch.tensor([3])))
    assert not torch.equal(alone, words(key(1, "x"), 7, torch.tensor([2]), torch.tensor([6]), torch.tensor([3])))


def test_words_are_even() -> None:
    drawn = words(key(0, "even"), 1000, torch.arange(100))
    assert drawn.min() >= 0
    assert drawn.max() < 2**32
    assert drawn.double().mean() / 2**32 == pytest.approx(0.5, abs=0.005)
