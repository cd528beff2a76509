"""Transfers whose rates change at block borders, by hand and against a plain loop."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lesson.radio.transfer import block_at, finish_s

TABLE_BPS = np.array([[10.0, 5.0, 20.0], [4.0, 8.0, 1.0], [0.0, 2.0, 50.0]])
"""Of three clients, in blocks 0 to 2; later blocks begin again."""


def table(clients: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    return TABLE_BPS[clients, blocks % 3]


def steady(clients: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    return np.broadcast_to(clients.astype(float), blocks.shape)


def faded(clients: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Anything between 0, in every seventh block or so, and 200 bit/s."""
    mixed = (clients * 7919 + blocks * 104729 + 12345) % 1009
    return np.where(mixed % 7 == 0, 0.0, mixed / 5)


def slow_finish_s(client: int, begin_s: float, bits: float, coherence_s: float) -> float:
    block = math.floor(begin_s / coherence_s)
    now_s = begin_s
    while True:
        rate_bps = float(faded(np.array([client]), np.array([block]))[0])
        end_s = (block + 1) * coherence_s
        if rate_bps * (end_s - now_s) >= bits:
            return now_s + bits / rate_bps if bits else now_s
        bits -= rate_bps * max(end_s - now_s, 0.0)
        now_s, block = end_s, block + 1


def finish(clients: list[int], begin_s: list[float], bits: list[float], rates=table, coherence_s=10.0) -> np.ndarray:
    return finish_s(np.array(clients), np.array(begin_s), np.array(bits), rates, coherence_s)


def test_rates_change_at_block_borders() -> None:
    # Client 0 from 2 s: 8 s at 10 bit/s are 80, the other 20 at 5 bit/s take 4 s: 14 s.
    # Client 1 from 5 s: 5 s at 4 are 20, 10 s at 8 are 80, the last 5 at 1 bit/s take 5 s: 25 s.
    # Client 2 from 10 s, where block 1 begins: 10 s at 2 are 20, the other 50 at 50 bit/s take 1 s: 21 s.
    assert finish([0, 1, 2], [2.0, 5.0, 10.0], [100.0, 105.0, 70.0]).tolist() == [14.0, 25.0, 21.0]


def test_transfer_waits_during_a_block_without_rate() -> None:
    # Client 2 has nothing in block 0 (0 to 10 s) and block 3 (30 to 40 s): 20 + 500 bits by 30 s, 20 more by 50 s.
    # Client 0 ends at a border: 10 s at 10 bit/s are 100.
    assert finish([2, 2, 0], [3.0, 3.0, 0.0], [20.0, 530.0, 100.0]).tolist() == [20.0, 45.0, 10.0]


def test_rates_that_never_change() -> None:
    # Client 4 sends 1 bit at 4 bit/s in two blocks of an eighth of a second; client 0, at 0 bit/s, never completes.
    assert finish([0, 4], [0.0, 0.0], [1.0, 1.0], steady, 0.125).tolist() == [math.inf, 0.25]
    # 3 + 100 / 10 = 13 s, 3 + 100 / 4 = 28 s; client 2 has no rate in block 0.
    assert finish([0, 1, 2], [3.0] * 3, [100.0] * 3, coherence_s=math.inf).tolist() == [13.0, 28.0, math.inf]


@pytest.mark.parametrize("coherence_s", [10.0, math.inf])
def test_empty_and_never_starting_transfers(coherence_s: float) -> None:
    begin_s = [7.0, math.inf, math.inf, 7.0]
    through_s = finish([0, 0, 2, 2], begin_s, [0.0, 5.0, 0.0, 0.0], coherence_s=coherence_s)
    assert through_s.tolist() == [7.0, math.inf, math.inf, 7.0]
    assert finish([], [], [], coherence_s=coherence_s).shape == (0,)


def test_infinite_rate_takes_no_time() -> None:
    def boundless(clients: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        return np.where(blocks < clients, 0.0, math.inf)

    # Client 2 has to wait for block 2, which begins at 20 s.
    assert finish([0, 2], [3.0, 3.0], [1.0, 1.0], boundless).tolist() == [3.0, 20.0]


@pytest.mark.parametrize("coherence_s", [0.1, 0.3, 0.01, 1 / 3, 7.0, 1e-3])
def test_border_belongs_to_the_block_it_begins(coherence_s: float) -> None:
    """Also where the division by `coherence_s` rounds to the block before or after."""
    blocks = np.concatenate([np.arange(10_000), 10**9 + np.arange(1000)])
    border_s, next_s = blocks * coherence_s, (blocks + 1) * coherence_s
    for times_s in (border_s, np.nextafter(border_s, np.inf), np.nextafter(next_s, 0.0)):
        assert np.array_equal(block_at(times_s, coherence_s), blocks)


@given(
    begin_s=st.floats(0.0, 1e4),
    bits=st.floats(0.0, 1e5),
    rate_bps=st.integers(1, 1000),
    coherence_s=st.sampled_from([0.1, 0.3, 1.0, 17.0, math.inf]),
)
def test_block_length_does_not_affect_a_constant_rate(
    begin_s: float, bits: float, rate_bps: int, coherence_s: float
) -> None:
    through_s = finish([rate_bps], [begin_s], [bits], steady, coherence_s)
    assert through_s[0] == pytest.approx(begin_s + bits / rate_bps, rel=1e-9)


@given(
    transfers=st.lists(
        st.tuples(st.integers(0, 1000), st.floats(0.0, 50.0), st.floats(0.0, 5000.0)), min_size=1, max_size=12
    ),
    coherence_s=st.sampled_from([0.1, 0.3, 1.0, 17.0]),
)
def test_transfers_agree_with_a_plain_loop(transfers: list[tuple[int, float, float]], coherence_s: float) -> None:
    clients, begin_s, bits = (list(column) for column in zip(*transfers, strict=True))
    expected_s = [slow_finish_s(*transfer, coherence_s) for transfer in transfers]
    assert finish(clients, begin_s, bits, faded, coherence_s) == pytest.approx(expected_s, rel=1e-9)


def test_transfer_does_not_depend_on_other_clients() -> None:
    rng = np.random.default_rng(0)
    clients, begin_s, bits = np.arange(20_000), rng.uniform(0, 9, 20_000), rng.uniform(0, 3000, 20_000)
    through_s = finish_s(clients, begin_s, bits, faded, 1.0)
    for some in (slice(7, 8), slice(100, 300), slice(17_000, None)):
        alone_s = finish_s(clients[some], begin_s[some], bits[some], faded, 1.0)
        np.testing.assert_array_equal(alone_s, through_s[some])


def test_waiting_for_a_channel_evaluates_about_as_many_rates_as_it_takes() -> None:
    """Nothing is sent for 2,000 blocks."""
    num_rates = [0]

    def rates(clients: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        num_rates[0] += blocks.size
        return np.where(blocks < 2000, 0.0, 5.0) + 0.0 * clients

    assert finish_s(np.arange(1), np.zeros(1), np.array([10.0]), rates, 1.0).tolist() == [2002.0]
    assert num_rates[0] < 5000
