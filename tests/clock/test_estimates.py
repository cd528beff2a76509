import numpy as np
import pytest

from lesson.clock.estimates import RecentLatencies, SlidingWindow


@pytest.mark.parametrize(
    ("window", "quantile", "seen_s", "estimates_s"),
    [
        (1, None, [4.0, 9.0, 2.0], [4.0, 9.0, 2.0]),
        (3, None, [4.0, 8.0, 3.0, 1.0], [4.0, 6.0, 5.0, 4.0]),  # in the end, (8 + 3 + 1) / 3
        (5, 0.5, [9.0, 1.0, 5.0, 7.0, 3.0], [9.0, 1.0, 5.0, 5.0, 5.0]),  # of 4, the second smallest; of 5, the third
        (5, 1.0, [9.0, 1.0, 5.0], [9.0, 9.0, 9.0]),
    ],
)
def test_the_estimate_is_the_mean_or_a_quantile_of_the_last_times(
    window: int, quantile: float | None, seen_s: list[float], estimates_s: list[float]
) -> None:
    """Client 2 is slower by 100 s; client 1 is never seen."""
    estimates, clients = SlidingWindow(3, window, quantile), np.array([2, 0])
    got = [estimates.see(clients, np.array([one + 100, one])).tolist() for one in seen_s]
    assert got == [[one + 100, one] for one in estimates_s]
    assert np.isnan(estimates.seen_s[1]).all()


def measured(estimates: RecentLatencies, *seconds: float) -> list[float]:
    """Return the estimate for client 0, 10 s to begin with, after each of these latencies."""
    told = [10.0]
    for one in seconds:
        told.append(estimates.see(0, one, told[-1]))
    return told[1:]


@pytest.mark.parametrize(
    ("seen_s", "estimate_s"),
    [
        ([8.0], 8.0),
        ([30.0, 8.0], 8.0),  # of two, the shorter
        ([8.0, 30.0, 9.0], 9.0),
        ([8.0, 30.0, 9.0, 31.0], 30.0),  # a client that became slower is noticed with its second slow update
        ([8.0, 9.0, 7.0, 30.0, 6.0], 9.0),
        ([99.0, 98.0, 9.0, 7.0, 30.0, 6.0, 5.0], 9.0),  # the first two are forgotten
    ],
)
def test_the_estimate_for_a_real_client_is_the_second_longest_of_five(seen_s: list[float], estimate_s: float) -> None:
    estimates = RecentLatencies(2)
    assert measured(estimates, *seen_s)[-1] == estimate_s
    assert np.isnan(estimates.seen_s[1]).all()
    estimates.forget(0)
    assert measured(estimates, 3.0) == [3.0]


def test_a_cold_first_reply_can_only_lower_the_estimate() -> None:
    """48 s on first contact are ignored. 4 s are believed, but not kept: the next latency, 12 s, is the only one."""
    assert measured(RecentLatencies(1, first_is_cold=True), 48.0, 9.0, 9.5) == [10.0, 9.0, 9.0]
    assert measured(RecentLatencies(1, first_is_cold=True), 4.0, 12.0) == [4.0, 12.0]


def test_no_reply_on_first_contact_counts_and_the_next_reply_is_not_cold() -> None:
    estimates = RecentLatencies(1, first_is_cold=True)
    assert estimates.see(0, 60.0, 10.0, is_complete=False) == 60.0
    assert estimates.see(0, 9.0, 60.0) == 9.0
    assert estimates.seen_s[0, -2:].tolist() == [60.0, 9.0]
