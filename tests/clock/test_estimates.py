import numpy as np
import pytest

from lesson.clock.estimates import SlidingWindow, conservative_window


def seen(estimates: SlidingWindow, *seconds: float) -> list[float]:
    """Return the estimate for client 0 after each of these times."""
    return [float(estimates.see(np.array([0]), np.array([one]))[0]) for one in seconds]


def test_a_window_of_one_is_the_last() -> None:
    assert seen(SlidingWindow(3, 1), 4.0, 9.0, 2.0) == [4.0, 9.0, 2.0]


def test_the_mean_of_the_last_three() -> None:
    # 4; (4 + 8) / 2; (4 + 8 + 3) / 3; the 4 is forgotten: (8 + 3 + 1) / 3
    assert seen(SlidingWindow(3, 3), 4.0, 8.0, 3.0, 1.0) == [4.0, 6.0, 5.0, 4.0]


def test_a_quantile_is_the_smallest_time_that_covers_its_share() -> None:
    # Of 4: ceil(0.5 · 4) = the second smallest; of 5, the third.
    assert seen(SlidingWindow(1, 5, 0.5), 9.0, 1.0, 5.0, 7.0, 3.0) == [9.0, 1.0, 5.0, 5.0, 5.0]
    assert seen(SlidingWindow(1, 5, 1.0), 9.0, 1.0, 5.0) == [9.0, 9.0, 9.0]


def test_clients_are_seen_together_and_by_themselves() -> None:
    estimates = SlidingWindow(4, 2)
    assert estimates.see(np.array([3, 1]), np.array([2.0, 6.0])).tolist() == [2.0, 6.0]
    assert estimates.see(np.array([1]), np.array([8.0])).tolist() == [7.0]
    assert np.isnan(estimates.seen_s[[0, 2]]).all()
    estimates.forget(1)
    assert estimates.see(np.array([1]), np.array([5.0])).tolist() == [5.0]


@pytest.mark.parametrize(
    ("seen_s", "estimate_s"),
    [
        ([8.0], 8.0),
        ([8.0, 30.0], 30.0),  # of two, the longer
        ([8.0, 30.0, 9.0], 9.0),  # of more, the second longest
        ([8.0, 30.0, 9.0, 31.0], 30.0),
        ([8.0, 9.0, 7.0, 30.0, 6.0], 9.0),
        ([99.0, 8.0, 9.0, 7.0, 30.0, 6.0], 9.0),  # the first is forgotten
        ([8.0, 8.0, 8.0, 8.0, 500.0, 8.0, 8.0, 8.0, 8.0], 8.0),  # slow once
        ([8.0, 8.0, 8.0, 20.0, 21.0], 20.0),  # slower twice in five: a new estimate
    ],
)
def test_the_estimate_is_the_second_longest_of_the_last_five(seen_s: list[float], estimate_s: float) -> None:
    estimates = conservative_window(2)
    assert [estimates.see(np.array([0]), np.array([seconds]))[0] for seconds in seen_s][-1] == estimate_s
    assert np.isnan(estimates.seen_s[1]).all()
