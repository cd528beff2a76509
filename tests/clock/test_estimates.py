import numpy as np
import pytest

from lesson.clock.estimates import RecentLatencies, SlidingWindow


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


def measured(estimates: RecentLatencies, *seconds: float, first_s: float = 10.0) -> list[float]:
    """Return the estimate for client 0, `first_s` to begin with, after each of these latencies."""
    told = [first_s]
    for one in seconds:
        told.append(estimates.see(0, one, told[-1]))
    return told[1:]


@pytest.mark.parametrize(
    ("seen_s", "estimate_s"),
    [
        ([8.0], 8.0),
        ([8.0, 30.0], 8.0),  # of two, the shorter
        ([30.0, 8.0], 8.0),
        ([8.0, 30.0, 9.0], 9.0),
        ([8.0, 30.0, 9.0, 31.0], 30.0),
        ([8.0, 9.0, 7.0, 30.0, 6.0], 9.0),
        ([99.0, 8.0, 9.0, 7.0, 30.0, 6.0], 9.0),  # the first is forgotten
    ],
)
def test_the_estimate_is_the_second_longest_of_the_last_five(seen_s: list[float], estimate_s: float) -> None:
    estimates = RecentLatencies(2)
    assert measured(estimates, *seen_s)[-1] == estimate_s
    assert np.isnan(estimates.seen_s[1]).all()


@pytest.mark.parametrize("num_before", [1, 2, 3, 4, 9])
def test_an_outlier_never_raises_the_estimate(num_before: int) -> None:
    """However many latencies of 8 s came before a single one of 500 s, and whatever comes after it."""
    assert measured(RecentLatencies(1), *num_before * [8.0], 500.0, *9 * [8.0]) == (num_before + 10) * [8.0]


@pytest.mark.parametrize("num_before", [1, 2, 3, 4, 9])
def test_a_client_that_becomes_slower_is_noticed_with_its_second_slow_update(num_before: int) -> None:
    told = measured(RecentLatencies(1), *num_before * [8.0], 20.0, 21.0, 22.0)
    assert told == [*(num_before + 1) * [8.0], 20.0, 21.0]


def test_a_client_that_becomes_faster_is_noticed_when_one_slow_update_is_left_in_five() -> None:
    assert measured(RecentLatencies(1), 20.0, 20.0, 20.0, 8.0, 8.0, 8.0, 8.0) == [20.0] * 6 + [8.0]


def test_a_cold_first_reply_can_only_lower_the_estimate() -> None:
    """10 s are assumed. 48 s on first contact are ignored, and 9 s the next time are the first that count; 4 s on first
    contact are believed, but not kept: the next latency, 12 s, is the only one."""
    assert measured(RecentLatencies(1, first_is_cold=True), 48.0, 9.0, 9.5) == [10.0, 9.0, 9.0]
    assert measured(RecentLatencies(1, first_is_cold=True), 4.0, 12.0) == [4.0, 12.0]


def test_no_reply_on_first_contact_counts() -> None:
    """The server waited for 60 s: the client is estimated slow until it replies. Its first reply is not cold."""
    estimates = RecentLatencies(1, first_is_cold=True)
    assert estimates.see(0, 60.0, 10.0, is_complete=False) == 60.0
    assert estimates.see(0, 9.0, 60.0) == 9.0
    assert estimates.seen_s[0, -2:].tolist() == [60.0, 9.0]
