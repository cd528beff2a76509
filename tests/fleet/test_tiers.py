import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lesson.core.errors import InputError
from lesson.fleet.tiers import TOLERANCE, UNREACHABLE, assign_tiers, due_round

deadlines = st.floats(1e-6, 1e6)
latencies = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30)


def tiers(latency_s: list[float], deadline_s: float) -> list[int]:
    return assign_tiers(np.array(latency_s), deadline_s).tolist()


def test_tiers_by_hand() -> None:
    assert tiers([0.1, 19.999, 20.0, 20.001, 40.0, 40.1, 68.0], 20.0) == [1, 1, 1, 2, 2, 3, 4]


def test_multiples_that_ceil_and_comparison_get_wrong() -> None:
    # 2.1 / 0.3 = 7.000000000000001 in floating point and 3 · 0.3 = 0.8999999999999999 < 0.9.
    assert math.ceil(2.1 / 0.3) == 8
    assert not 0.9 <= 3 * 0.3
    assert tiers([0.9, 2.1], 0.3) == [3, 7]


def test_edges_where_the_division_rounds_up_or_down() -> None:
    """Found by search: the quotient is one too high in the first case, one too low in the second."""
    assert math.ceil(123225.72183283111 / (64.95820866247121 * (1 + TOLERANCE))) == 1898
    assert tiers([123225.72183283111], 64.95820866247121) == [1897]
    assert math.ceil(206252.43370428143 / (81.587196876612 * (1 + TOLERANCE))) == 2528
    assert tiers([206252.43370428143], 81.587196876612) == [2529]


@given(deadlines, st.integers(1, 10**6))
def test_exactly_k_deadlines_is_tier_k(deadline_s: float, k: int) -> None:
    assert tiers([k * deadline_s], deadline_s) == [k]


@given(latencies, deadlines)
def test_tier_is_the_smallest_that_suffices(latency_s: list[float], deadline_s: float) -> None:
    for latency, tier in zip(latency_s, tiers(latency_s, deadline_s), strict=True):
        assert latency <= tier * deadline_s * (1 + TOLERANCE)
        assert tier == 1 or latency > (tier - 1) * deadline_s * (1 + TOLERANCE)


def test_unreachable_clients_and_extreme_deadlines() -> None:
    assert tiers([math.inf, 5.0], 10.0) == [UNREACHABLE, 1]
    assert tiers([math.inf, 1e300], math.inf) == [UNREACHABLE, 1]
    assert tiers([1.0, 1e300], 5e-324) == [UNREACHABLE, UNREACHABLE]
    assert tiers([1.0], 1.7e308) == [1]
    assert tiers([1.0], 2.0**-30) == [2**30]


@pytest.mark.parametrize("deadline_s", [0.0, math.nan])
def test_invalid_deadlines(deadline_s: float) -> None:
    with pytest.raises(InputError, match="deadline_s"):
        assign_tiers(np.array([1.0]), deadline_s)


def test_slots_of_four_tiers() -> None:
    """The paper's Fig. 2: tier j uploads every j rounds. Clients start again when the round after their slot opens."""
    clients, started = np.array([1, 2, 3, 4]), np.ones(4, dtype=np.int64)
    slots = []
    for round in range(1, 13):
        due = np.flatnonzero(due_round(started, clients) == round)
        started[due] = round + 1
        slots.append(due.tolist())
    assert slots == [
        [0], [0, 1], [0, 2], [0, 1, 3], [0], [0, 1, 2], [0], [0, 1, 3], [0, 2], [0, 1], [0], [0, 1, 2, 3],
    ]  # fmt: skip
