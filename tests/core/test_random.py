"""Counter-based random numbers and named streams: what they depend on, and their statistics.

For n numbers of variance 1, the mean and the correlation of two rows have a standard error of 1/√n; tests allow five
times that.
"""

import numpy as np
import pytest

from lesson.core.random import RepeatedStream, exponentials, key, normals, stream, uniforms

NUM_DRAWS = 250_000
CLIENTS = np.arange(NUM_DRAWS)
TOLERANCE = 5 / np.sqrt(NUM_DRAWS)
KEY = key(3, "test")


def correlation(left: np.ndarray, right: np.ndarray) -> float:
    return abs(float(np.corrcoef(left.ravel(), right.ravel())[0, 1]))


@pytest.mark.parametrize("draw", [uniforms, exponentials, normals])
def test_number_depends_on_its_own_ids_alone(draw) -> None:
    clients, blocks = np.arange(20_000)[:, None], np.arange(7)
    drawn = draw(KEY, clients, blocks)
    assert drawn.shape == (20_000, 7)
    some = np.array([19_999, 3, 17_000, 3])
    assert np.array_equal(draw(KEY, some[:, None], blocks[::-1]), drawn[some][:, ::-1])
    assert np.array_equal(draw(KEY, clients[:, 0], np.array(4)), drawn[:, 4])
    assert draw(KEY, some[:0], np.array(4)).shape == (0,)
    rows = draw(KEY, np.array([[5], [9]]), np.array([[1, 2, 3], [2, 3, 4]]))
    assert np.array_equal(rows, [drawn[5, 1:4], drawn[9, 2:5]])


def test_every_part_of_the_key_changes_the_number() -> None:
    one, two = np.array(1), np.array(2)
    names = [
        (KEY, one, two),
        (KEY, two, one),
        (KEY, one),
        (KEY, one, two, np.array(0)),
        (KEY, one, np.array(2 + 2**40)),
        (key(4, "test"), one, two),
        (key(3, "tests"), one, two),
    ]
    assert len({float(uniforms(*name)) for name in names}) == len(names)


def test_numbers_follow_splitmix64() -> None:
    # SplitMix64's finalizer in whole Python numbers, as its authors print it.
    def mixed(word: int) -> int:
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
        return word ^ (word >> 31)

    word = mixed(mixed(KEY ^ (12 * 0x9E3779B97F4A7C15) % 2**64) ^ (2**40 * 0x9E3779B97F4A7C15) % 2**64)
    expected = ((word >> 12) + 0.5) / 2**52
    assert uniforms(KEY, np.array([12]), np.array([2**40]))[0] == expected
    assert exponentials(KEY, np.array([12]), np.array([2**40]))[0] == pytest.approx(-np.log(expected), rel=1e-14)


def test_uniform_numbers_fill_the_open_interval() -> None:
    drawn = uniforms(KEY, CLIENTS, np.array(0))
    assert drawn.min() > 0
    assert drawn.max() < 1
    counts, _ = np.histogram(drawn, bins=250, range=(0, 1))
    # Chi-square of 250 bins: mean 249, standard deviation √(2·249) = 22.
    assert abs(np.sum((counts - 1000) ** 2) / 1000 - 249) < 5 * 22


def test_moments() -> None:
    uniform, exponential = uniforms(KEY, CLIENTS), exponentials(KEY, CLIENTS)
    normal = normals(KEY, CLIENTS)
    assert uniform.mean() == pytest.approx(1 / 2, abs=TOLERANCE * np.sqrt(1 / 12))
    assert uniform.var() == pytest.approx(1 / 12, abs=TOLERANCE * np.sqrt(1 / 180))
    assert exponential.mean() == pytest.approx(1, abs=TOLERANCE)
    assert exponential.var() == pytest.approx(1, abs=TOLERANCE * np.sqrt(8))  # variance of (x − 1)²: 9 − 1
    assert normal.mean() == pytest.approx(0, abs=TOLERANCE)
    assert normal.var() == pytest.approx(1, abs=TOLERANCE * np.sqrt(2))
    assert np.mean(normal**4) == pytest.approx(3, abs=TOLERANCE * np.sqrt(96))  # 105 − 9


@pytest.mark.parametrize("draw", [uniforms, normals])
@pytest.mark.parametrize("apart", [1, 64])
def test_neighbors_seeds_and_purposes_are_uncorrelated(draw, apart: int) -> None:
    clients, blocks = draw(KEY, CLIENTS, np.array(5)), draw(KEY, np.array(5), CLIENTS)
    for one, other in [
        (clients[apart:], clients[:-apart]),
        (clients, draw(KEY, CLIENTS, np.array(5 + apart))),
        (blocks[apart:], blocks[:-apart]),
        (clients, blocks),
        (clients, draw(key(3 + apart, "test"), CLIENTS, np.array(5))),
        (clients, draw(key(3, "other"), CLIENTS, np.array(5))),
    ]:
        assert correlation(one, other) < 1.1 * TOLERANCE


def test_every_bit_of_an_id_changes_half_of_the_bits() -> None:
    # 52 bits of 10 000 numbers: the share of bits that differ strays by 0.5/√520 000 = 0.0007.
    def bits(numbers: np.ndarray) -> np.ndarray:
        return np.floor(numbers * 2**52).astype(np.uint64)

    some = CLIENTS[:10_000]
    before = bits(uniforms(KEY, some, some))
    for bit in range(41):
        for ids in ((some ^ (1 << bit), some), (some, some ^ (1 << bit))):
            share = np.bitwise_count(before ^ bits(uniforms(KEY, *ids))).mean() / 52
            assert share == pytest.approx(0.5, abs=0.0035)


def test_stream_depends_on_its_own_name_alone() -> None:
    names = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 1, 0)]
    drawn = [stream(*name).random() for name in names]
    assert len(set(drawn)) == len(names)
    assert [stream(*name).random() for name in reversed(names)] == drawn[::-1]


def test_streams_are_pinned() -> None:
    """A change here changes every result that was ever published with a seed."""
    assert stream(0, "population/x").random(3).tolist() == [
        0.7623143889256584,
        0.30275956993048725,
        0.6394448593461898,
    ]


def test_repeated_stream_equals_stream() -> None:
    """Also after draws that leave a half-used word in the generator."""
    repeated = RepeatedStream(3, "strategy")
    for index in (5, 6, 5):
        given, expected = repeated.at(index), stream(3, "strategy", index)
        assert given.random(3).tolist() == expected.random(3).tolist()
        small = [one.integers(0, 100, 3, dtype=np.int32).tolist() for one in (given, expected)]
        assert small[0] == small[1]
        assert given.permutation(7).tolist() == expected.permutation(7).tolist()
