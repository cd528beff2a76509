import numpy as np
import pytest

from lesson.clock.estimates import RecentLatencies


def measured(estimates: RecentLatencies, *seconds: float) -> list[float]:
    """Return the estimate for client 0, 10 s to begin with, after each of these latencies."""
    estimates_s = [10.0]
    for latency_s in seconds:
        estimates_s.append(estimates.see(0, latency_s, estimates_s[-1]))
    return estimates_s[1:]


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
def test_estimate_is_the_second_longest_of_five(seen_s: list[float], estimate_s: float) -> None:
    estimates = RecentLatencies(2)
    assert measured(estimates, *seen_s)[-1] == estimate_s
    assert np.isnan(estimates.seen_s[1]).all()
    assert estimates.are_known.tolist() == [True, False]


def test_cold_first_reply_can_only_lower_the_estimate() -> None:
    """48 s on first contact are ignored. 4 s are believed, but not kept: the next latency, 12 s, is the only one."""
    assert measured(RecentLatencies(1, first_is_cold=True), 48.0, 9.0, 9.5) == [10.0, 9.0, 9.0]
    assert measured(RecentLatencies(1, first_is_cold=True), 4.0, 12.0) == [4.0, 12.0]
