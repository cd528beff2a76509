"""Clients that share one band: worked examples and properties."""

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lesson.core.state import restore_state, state_of
from lesson.radio.sharing import SharedBand, SharedRates
from lesson.radio.transfer import finish_s

Discipline = Literal["equal", "in-turn"]
Uploads = list[tuple[int, float, float]]
"""Client, time at which it is ready, and bits."""
each = pytest.mark.parametrize("discipline", ["equal", "in-turn"])


def split(clients: np.ndarray, block: int, num: int) -> np.ndarray:
    """120 bit/s in all."""
    return np.full(len(clients), 120 / num)


def faded(clients: np.ndarray, block: int | np.ndarray, num: int = 1) -> np.ndarray:
    """Between 0 and 100 bit/s for each, regardless of other uploads."""
    return (clients * 31 + block * 17 + 5) % 101 + np.zeros(np.shape(clients))


def band(
    discipline: Discipline,
    uploads: Uploads,
    rates: SharedRates = split,
    coherence_s: float = math.inf,
) -> SharedBand:
    shared = SharedBand(discipline, rates, coherence_s)
    add(shared, uploads)
    return shared


def add(shared: SharedBand, uploads: Uploads) -> None:
    client, ready_s, bits = (list(column) for column in zip(*uploads, strict=True))
    shared.add(np.array(client), np.array(ready_s, dtype=float), np.array(bits, dtype=float))


def through_s(shared: SharedBand) -> dict[int, float]:
    return dict(zip(*(array.tolist() for array in shared.forecast()), strict=True))


def sent_s(shared: SharedBand, *clients: int) -> list[float]:
    return shared.sent_s(np.array(clients)).tolist()


def test_equal_shares_of_three_successive_uploads() -> None:
    # 0 to 1 s: client 0 has 120 bit/s, 240 - 120 = 120 left.
    # 1 to 2 s: 60 bit/s each, 60 left of client 0 and 90 - 60 = 30 of client 1.
    # From 2 s: 40 bit/s each; client 1 needs 30 / 40 s: 2.75 s; 60 - 30 = 30 and 150 - 30 = 120 are left.
    # From 2.75 s: 60 bit/s each; client 0 needs 30 / 60 s: 3.25 s; 120 - 30 = 90 left of client 2.
    # From 3.25 s: 120 bit/s; client 2 needs 90 / 120 s: 4 s, which are all 480 bits at 120 bit/s.
    shared = band("equal", [(0, 0.0, 240.0), (1, 1.0, 90.0), (2, 2.0, 150.0)])
    assert through_s(shared) == {0: 3.25, 1: 2.75, 2: 4.0}
    shared.advance(3.0)
    # Client 2 was there for 1 s; client 1 stopped when it was through.
    assert sent_s(shared, 2, 0, 1) == [1.0, 3.0, 1.75]
    assert through_s(shared) == {0: 3.25, 1: 2.75, 2: 4.0}


def test_rate_changes_at_a_block_border() -> None:
    def halved_later(clients: np.ndarray, block: int, num: int) -> np.ndarray:
        return np.where((clients == 0) & (block > 0), 60.0, 120.0) / num

    # As above until 2.75 s, then 60 bit/s each until the border at 3 s: 15 and 105 are left.
    # Client 0 has 30 bit/s there and needs 15 / 30 s: 3.5 s; client 2 has 105 - 30 = 75 left, alone: 4.125 s.
    shared = band("equal", [(0, 0.0, 240.0), (1, 1.0, 90.0), (2, 2.0, 150.0)], halved_later, 3.0)
    assert through_s(shared) == {0: 3.5, 1: 2.75, 2: 4.125}


def test_later_upload_slows_down_the_others() -> None:
    shared = band("equal", [(0, 0.0, 240.0)])
    assert through_s(shared) == {0: 2.0}
    shared.advance(1.0)
    # 120 left of client 0 and 60 of client 1, at 60 bit/s each: 2 s; then 60 left of client 0, alone: 2.5 s.
    add(shared, [(1, 1.0, 60.0), (2, math.inf, 60.0)])
    assert through_s(shared) == {0: 2.5, 1: 2.0, 2: math.inf}


def test_uploads_in_turn() -> None:
    # Client 0: 1 to 4 s. Clients 7 and 3 are ready at 2 s, 7 was added first: 7 from 4 to 6 s, 3 from 6 to 7 s.
    # Then nobody, until client 5 is ready: 9 to 10 s.
    uploads = [(5, 9.0, 120.0), (0, 1.0, 360.0), (7, 2.0, 240.0), (3, 2.0, 120.0)]
    shared = band("in-turn", uploads)
    assert through_s(shared) == {5: 10.0, 0: 4.0, 7: 6.0, 3: 7.0}
    shared.advance(6.5)
    assert sent_s(shared, 0, 7, 3, 5) == [3.0, 2.0, 0.5, 0.0]
    shared.advance(9.25)
    assert sent_s(shared, 0, 7, 3, 5) == [3.0, 2.0, 1.0, 0.25]


def test_rates_in_turn_follow_the_blocks() -> None:
    def by_block(clients: np.ndarray, block: int, num: int) -> np.ndarray:
        assert num == 1
        return np.array([[10.0, 20.0], [40.0, 5.0]])[clients, min(block, 1)]

    # Client 0: 10 s at 10 bit/s are 100, 40 more at 20 bit/s take 2 s: 12 s. Client 1 has 5 bit/s by then: 14 s.
    assert through_s(band("in-turn", [(0, 0.0, 140.0), (1, 0.0, 10.0)], by_block, 10.0)) == {0: 12.0, 1: 14.0}


def test_others_speed_up_when_one_is_removed() -> None:
    shared = band("equal", [(0, 0.0, 240.0), (1, 0.0, 240.0)])
    shared.advance(1.0)
    shared.remove(np.array([1]))
    # 240 - 60 = 180 left at 120 bit/s: 1.5 s more.
    assert through_s(shared) == {0: 2.5}
    shared = band("in-turn", [(0, 0.0, 240.0), (1, 0.0, 240.0)])
    shared.advance(1.0)
    shared.remove(np.array([0]))
    assert through_s(shared) == {1: 3.0}
    add(shared, [(0, 1.5, 120.0)])
    assert through_s(shared) == {1: 3.0, 0: 4.0}


def test_band_without_bits_or_clients() -> None:
    assert through_s(band("equal", [(0, 3.0, 0.0), (1, 3.0, 120.0)])) == {0: 3.0, 1: 4.0}
    # In turn, even nothing waits: client 1 is behind client 0.
    assert through_s(band("in-turn", [(0, 3.0, 120.0), (1, 3.0, 0.0)])) == {0: 4.0, 1: 4.0}
    shared = SharedBand("equal", split, 1.0)
    assert through_s(shared) == {}
    shared.advance(5.0)
    # A time before the one advanced to is now.
    add(shared, [(0, 4.0, 120.0)])
    assert through_s(shared) == {0: 6.0}


@pytest.mark.parametrize("coherence_s", [1.0, math.inf])
def test_transfer_at_rate_0_never_completes(coherence_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_first(clients: np.ndarray, block: int, num: int) -> np.ndarray:
        return np.where(clients == 0, 120.0 / num, 0.0)

    monkeypatch.setattr("lesson.radio.sharing.MAX_IDLE_BLOCKS", 1000)
    uploads = [(1, 0.0, 60.0), (0, 5000.0, 60.0), (2, 6000.0, 0.0)]
    # Client 0 has half the band, 60 bit/s, as client 1 goes on in vain; in turn it waits for client 1.
    assert through_s(band("equal", uploads, only_first, coherence_s)) == {1: math.inf, 0: 5001.0, 2: 6000.0}
    assert through_s(band("in-turn", uploads, only_first, coherence_s)) == dict.fromkeys((0, 1, 2), math.inf)
    shared = band("equal", uploads, only_first, coherence_s)
    shared.advance(5000.5)
    assert sent_s(shared, 1, 0) == [5000.5, 0.5]
    assert through_s(shared) == {1: math.inf, 0: 5001.0, 2: 6000.0}


@pytest.mark.parametrize("stops_s", [[50.0], [5.0, 23.5, 50.0]])
def test_slow_upload_loses_no_bits(stops_s: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """100 bits at 1 bit/s take 100 blocks, ten times as many as may pass without progress."""
    monkeypatch.setattr("lesson.radio.sharing.MAX_IDLE_BLOCKS", 10)
    shared = band("equal", [(0, 0.0, 100.0)], lambda clients, _, __: np.ones(len(clients)), 1.0)
    for stop_s in stops_s:
        shared.advance(stop_s)
    assert shared._uploads.left_bits == pytest.approx([50.0])
    assert sent_s(shared, 0) == [50.0]
    shared.advance(200.0)
    assert shared._uploads.through_s == pytest.approx([100.0])


def test_infinite_rate_takes_no_time() -> None:
    def boundless(clients: np.ndarray, block: int, num: int) -> np.ndarray:
        return np.where(clients == 0, math.inf, 120 / num)

    assert through_s(band("equal", [(0, 1.0, 60.0), (1, 1.0, 120.0)], boundless)) == {0: 1.0, 1: 2.0}


UPLOADS = st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 500.0)), min_size=1, max_size=8).map(
    lambda rows: [(client, *row) for client, row in enumerate(rows)]
)


@each
@given(uploads=UPLOADS, stop_s=st.floats(0.0, 40.0))
def test_all_bits_are_sent_once(discipline: Discipline, uploads: Uploads, stop_s: float) -> None:
    # However they share 120 bit/s, the band is busy as long as somebody has something to send.
    shared = band(discipline, uploads, split, 0.7)
    end_s = 0.0
    for _, ready_s, bits in sorted(uploads, key=lambda upload: upload[1]):
        end_s = max(end_s, ready_s) + bits / 120
    assert max(through_s(shared).values()) == pytest.approx(end_s, rel=1e-9)
    shared.advance(stop_s)
    assert max(through_s(shared).values()) == pytest.approx(end_s, rel=1e-9)


@each
@given(uploads=UPLOADS, stop_s=st.floats(0.0, 40.0))
def test_sent_and_remaining_bits_add_up(discipline: Discipline, uploads: Uploads, stop_s: float) -> None:
    def steady(clients: np.ndarray, block: int, num: int) -> np.ndarray:
        return 10.0 + clients

    shared = band(discipline, uploads, steady, 0.7)
    shared.advance(stop_s)
    state = shared._uploads
    bits = np.array([upload[2] for upload in uploads])
    sent_bits = (10.0 + state.client) * state.sent_s
    assert state.left_bits + sent_bits == pytest.approx(bits, rel=1e-9, abs=1e-9)


@given(uploads=UPLOADS, coherence_s=st.sampled_from([0.3, 1.0, 7.0]))
def test_equal_shares_without_interference_are_separate_bands(uploads: Uploads, coherence_s: float) -> None:
    client, ready_s, bits = (np.array(column) for column in zip(*uploads, strict=True))
    expected_s = finish_s(client, ready_s, bits, faded, coherence_s)
    assert band("equal", uploads, faded, coherence_s).forecast()[1] == pytest.approx(expected_s, rel=1e-9)


@each
@given(uploads=UPLOADS, stops_s=st.lists(st.floats(0.0, 40.0), max_size=4), coherence_s=st.sampled_from([0.3, 7.0]))
def test_forecast_matches_the_completion_times(
    discipline: Discipline, uploads: Uploads, stops_s: list[float], coherence_s: float
) -> None:
    def rates(clients: np.ndarray, block: int, num: int) -> np.ndarray:
        return faded(clients, block) / num

    shared = band(discipline, uploads, rates, coherence_s)
    forecast_s = through_s(shared)
    for time_s in sorted(forecast_s.values()):
        shared.advance(time_s)
        assert through_s(shared) == forecast_s  # to the bit
    shared = band(discipline, uploads, rates, coherence_s)
    for stop_s in sorted(stops_s):
        shared.advance(stop_s)
    assert through_s(shared) == pytest.approx(forecast_s, rel=1e-9)


@each
def test_restored_band_continues_bit_identically(discipline: Discipline) -> None:
    first = band(discipline, [(3, 0.1, 240.0), (1, 0.2, 90.0), (2, 2.0, 150.0)], split, 0.3)
    first.advance(1.1)
    second = SharedBand(discipline, split, 0.3)
    restore_state(second, *state_of(first))
    for shared in (first, second):
        shared.advance(2.3)
        shared.remove(np.array([1]))
        add(shared, [(0, 2.4, 100.0)])
        shared.advance(2.7)
    assert through_s(first) == through_s(second)
    assert sent_s(first, 0, 2, 3) == sent_s(second, 0, 2, 3)
