"""SNR traces: which row holds when, how they repeat, where clients start, and mean rates."""

import numpy as np
import pytest

from lesson.core.arrays import FloatArray
from lesson.radio.snr_traces import SnrTraces

TIME_S = np.array([10.0, 12.0, 15.0, 0.0, 4.0])
SNR_DB = np.array([0.0, 10.0, 20.0, 30.0, -10.0])
OFFSETS = np.array([0, 3, 5])
"""Trace 0 is 1 for 2 s, 10 for 3 s, and 100 for 3 s, as long as the row before. Trace 1 is 1000 and 0.1, 4 s each."""


def traces(num_clients: int = 2, coherence_s: float = 1.0, seed: int | None = None) -> SnrTraces:
    return SnrTraces(TIME_S, SNR_DB, OFFSETS, num_clients, coherence_s, seed)


def at(made: SnrTraces, client: int, *times_s: float) -> list[float]:
    return made.at(np.array([[client]]), np.array([times_s]))[0].tolist()


def bps_per_hz(snr: FloatArray) -> FloatArray:
    return np.log2(1 + snr)


def test_row_holds_until_the_next_and_trace_repeats() -> None:
    made = traces()
    assert at(made, 0, 0, 1.99, 2, 4.99, 5, 7.99) == pytest.approx([1, 1, 10, 10, 100, 100])
    assert at(made, 0, 8, 10, 13, 8000.5) == pytest.approx([1, 10, 100, 1])
    assert at(made, 1, 0, 3.9, 4, 7.9, 8, 804) == pytest.approx([1000, 1000, 0.1, 0.1, 1000, 0.1])


def test_several_clients_at_once_repeat_the_traces() -> None:
    snr = traces(4).at(np.array([[1], [0], [3]]), np.array([[0.0, 5.0]]))
    assert snr == pytest.approx(np.array([[1000, 0.1], [1, 100], [1000, 0.1]]))


def test_single_row_is_constant() -> None:
    made = SnrTraces(np.array([7.0]), np.array([10.0]), np.array([0, 1]), 3, 1.0, 0)
    assert at(made, 2, 0.0, 1e6) == pytest.approx([10, 10])
    assert made.mean(bps_per_hz) == pytest.approx(np.full(3, np.log2(11)))


def test_trace_may_be_shorter_than_a_second() -> None:
    made = SnrTraces(np.array([0.0, 0.25]), np.array([0.0, 10.0]), np.array([0, 2]), 1, 0.25, None)
    assert at(made, 0, 0.0, 0.25, 0.5, 0.75, 1.0) == pytest.approx([1, 10, 1, 10, 1])
    assert made.mean(bps_per_hz) == pytest.approx([(1 + np.log2(11)) / 2])


def test_drawn_starts_shift_whole_traces_by_whole_blocks() -> None:
    """Each client has its trace of 8 s, shifted by 0 to 7 s; all shifts occur, and a client's own never changes."""
    made, whole = traces(400, seed=3), traces(2)
    seconds = np.arange(8.0)
    shifted = [[at(whole, trace, *(seconds + shift)) for shift in range(8)] for trace in (0, 1)]
    shifts = [shifted[client % 2].index(at(made, client, *seconds)) for client in range(400)]
    assert set(shifts[::2]) == {0, 1, 2, 3, 4, 5, 6, 7}
    few = traces(5, seed=3)
    assert [at(few, client, *seconds) for client in range(5)] == [at(made, client, *seconds) for client in range(5)]
    assert any(at(traces(5, seed=4), client, *seconds) != at(few, client, *seconds) for client in range(5))


def test_means_weigh_rows_by_their_durations() -> None:
    """Trace 0: (2·log2(2) + 3·log2(11) + 3·log2(101)) / 8; the start does not matter."""
    one = (2 * np.log2(2) + 3 * np.log2(11) + 3 * np.log2(101)) / 8
    two = (np.log2(1001) + np.log2(1.1)) / 2
    assert traces(3, seed=1).mean(bps_per_hz) == pytest.approx([one, two, one])
