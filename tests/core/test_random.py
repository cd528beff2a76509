"""Random numbers by counter: what they depend on, and that they are as random as their use needs.

Of n numbers of variance 1 the mean strays by 1/√n and the correlation of two such rows by the same; tests allow five
times that, 0.005 for a million.
"""

import numpy as np
import pytest

from lesson.core.random import exponentials, key, normals, uniforms

MILLION = 1_000_000
CLIENTS = np.arange(MILLION)
TOLERANCE = 5 / np.sqrt(MILLION)
KEY = key(3, "test")


def correlation(left: np.ndarray, right: np.ndarray) -> float:
    return abs(float(np.corrcoef(left.ravel(), right.ravel())[0, 1]))


@pytest.mark.parametrize("draw", [uniforms, exponentials, normals])
def test_a_number_depends_on_its_own_ids_alone(draw) -> None:
    clients, blocks = np.arange(50_000)[:, None], np.arange(7)
    drawn = draw(KEY, clients, blocks)
    assert drawn.shape == (50_000, 7)
    some = np.array([49_999, 3, 17_000, 3])
    assert np.array_equal(draw(KEY, some[:, None], blocks[::-1]), drawn[some][:, ::-1])
    assert np.array_equal(draw(KEY, clients[:, 0], np.array(4)), drawn[:, 4])
    assert draw(KEY, np.array(17_000), np.array(4)) == drawn[17_000, 4]
    assert draw(KEY, some[:0], np.array(4)).shape == (0,)


def test_a_number_of_a_row_of_its_own_for_every_row() -> None:
    clients, blocks = np.array([[5], [9]]), np.array([[1, 2, 3], [2, 3, 4]])
    drawn = uniforms(KEY, clients, blocks)
    assert drawn.shape == (2, 3)
    assert drawn[1, 0] == uniforms(KEY, np.array(9), np.array(2))


def test_every_part_of_the_name_counts() -> None:
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


def test_the_numbers_stay_the_same() -> None:
    # SplitMix64's finaliser in whole Python numbers, as its authors print it.
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
    counts, _ = np.histogram(drawn, bins=1000, range=(0, 1))
    # Chi-square of 1000 bins: mean 999, standard deviation √(2·999) = 45.
    assert abs(np.sum((counts - 1000) ** 2) / 1000 - 999) < 5 * 45


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


def test_tails_of_the_normal_distribution() -> None:
    drawn = np.abs(normals(KEY, CLIENTS, np.array(1)))
    for sigmas, share in [(1, 0.317311), (2, 0.0455003), (3, 0.00269980)]:
        assert np.mean(drawn > sigmas) == pytest.approx(share, abs=TOLERANCE * np.sqrt(share))


@pytest.mark.parametrize("draw", [uniforms, exponentials, normals])
@pytest.mark.parametrize("apart", [1, 2, 64, 4096])
def test_neighbors_have_nothing_in_common(draw, apart: int) -> None:
    clients = draw(KEY, CLIENTS, np.array(5))
    assert correlation(clients[apart:], clients[:-apart]) < 1.1 * TOLERANCE
    assert correlation(clients, draw(KEY, CLIENTS, np.array(5 + apart))) < 1.1 * TOLERANCE
    blocks = draw(KEY, np.array(5), CLIENTS)
    assert correlation(blocks[apart:], blocks[:-apart]) < 1.1 * TOLERANCE
    assert correlation(clients, blocks) < 1.1 * TOLERANCE


def test_seeds_and_purposes_have_nothing_in_common() -> None:
    drawn = uniforms(KEY, CLIENTS)
    assert correlation(drawn, uniforms(key(4, "test"), CLIENTS)) < TOLERANCE
    assert correlation(drawn, uniforms(key(3, "other"), CLIENTS)) < TOLERANCE


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
