import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.fleets import make_fleet
from lesson import InputError, Lesson, Settings, draw_fleet, simulate
from lesson.planning.plan import evaluate_deadline, make_plan, mean_staleness, propose_deadline_s


def test_plan_by_hand() -> None:
    """Deadline 10 s for 5, 16, 30 and 38 s: tiers 1 to 4; FedAvg waits 38 s."""
    plan = make_plan(make_fleet([5.0, 16.0, 30.0, 38.0]), 10.0, num_rounds=4)
    assert plan.tiers.tolist() == [1, 2, 3, 4]
    assert plan.round_s == {"lesson": 10.0, "fedavg": 38.0, "fedcs": 10.0}
    assert [row.uploads_per_1000s for row in plan.tier_rows] == pytest.approx([100, 50, 1000 / 30, 25])
    found = plan.to_dict()
    assert found["tiers"] == [{"tier": tier, "clients": [tier - 1], "on_time": 1.0} for tier in (1, 2, 3, 4)]
    assert found["rounds"] == [
        {"round": 1, "end_s": 10.0, "tiers": [1], "clients": [0]},
        {"round": 2, "end_s": 20.0, "tiers": [1, 2], "clients": [0, 1]},
        {"round": 3, "end_s": 30.0, "tiers": [1, 3], "clients": [0, 2]},
        {"round": 4, "end_s": 40.0, "tiers": [1, 2, 4], "clients": [0, 1, 3]},
    ]
    # 100 kbit in 8 s
    known = {"client": 1, "compute_s": 8.0, "upload_s": 8.0, "latency_s": 16.0, "compute_j": 2.0, "transmit_j": 20.0}
    known |= {"rate_bps": 12_500.0, "upload_bits": 100e3, "tier": 2}
    assert found["clients"][1] == known | dict.fromkeys(("distance_km", "gain_db", "snr_db", "error_rate"))


def test_uploads_by_hand() -> None:
    """Deadline 10 s for 5, 16, 30 and 38 s, of which uploads are half: 2.5, 8, 15 and 19 s. A tenth of the size takes
    0.25 to 1.9 s, and latencies are then 2.75, 8.8, 16.5 and 20.9 s."""
    rows = make_plan(make_fleet([5.0, 16.0, 30.0, 38.0, math.inf]), 10.0, upload_bits={"sign 1": 10e3}).uploads
    assert [vars(row) for row in rows] == [
        {
            "compression": name,
            "bits": bits,
            "fastest_s": pytest.approx(times_s[0]),
            "median_s": pytest.approx(times_s[1]),
            "slowest_s": pytest.approx(times_s[2]),
            "tiers": tiers,
            "fedavg_round_s": pytest.approx(slowest_s),
        }
        for name, bits, times_s, tiers, slowest_s in (
            ("none", 100e3, (2.5, 11.5, 19), {1: 1, 2: 1, 3: 1, 4: 1}, 38.0),
            ("sign 1", 10e3, (0.25, 1.15, 1.9), {1: 2, 2: 1, 3: 1}, 20.9),
        )
    ]
    unknown = replace(make_fleet([5.0, 16.0]), upload_s=np.full(2, np.nan))
    assert make_plan(unknown, 10.0).uploads == []


def test_deadline_by_hand() -> None:
    """Tiers 1 and 2 at 10 s: per 1000 s client 0 gives 100 updates, client 1 gives 50, each of staleness 1. Energy:
    11 J and 22 J an update, weighted 2 : 1."""
    row = evaluate_deadline(make_fleet([5.0, 16.0, math.inf]), 10.0)
    assert (row.num_tiers, row.round_s, row.updates_per_1000s) == (2, 10.0, 150.0)
    assert row.staleness == pytest.approx(1 / 3)
    assert (row.served, row.served_by_fedcs) == pytest.approx((2 / 3, 1 / 3))
    assert row.joules_per_update == pytest.approx((2 * 11 + 22) / 3)


def test_deadline_of_the_slowest_client_equals_fedavg() -> None:
    row = evaluate_deadline(make_fleet([5.0, 16.0]), 16.0)
    assert (row.num_tiers, row.round_s, row.updates_per_1000s, row.staleness) == (1, 16.0, 125.0, 0.0)
    longer = evaluate_deadline(make_fleet([5.0, 16.0]), math.inf)
    assert (longer.round_s, longer.updates_per_1000s) == (16.0, 125.0)


@settings(max_examples=8)
@given(st.lists(st.integers(2, 7), min_size=1, max_size=6), st.booleans())
def test_long_run_figures_agree_with_the_simulation(tiers: list[int], first_tier: bool) -> None:
    """420 rounds are a whole period of every set of tiers up to 7."""
    latencies = [10.0 * tier - 1 for tier in tiers + [1] * first_tier]
    fleet = make_fleet(latencies)
    merged, staleness = 0, 0
    for record in simulate(Lesson(10.0), fleet, rounds=420):
        merged += len(record.merged)
        staleness += int(record.staleness.sum())
    row = evaluate_deadline(fleet, 10.0)
    assert row.updates_per_1000s == pytest.approx(merged / 4.2)
    assert row.staleness == pytest.approx(staleness / merged, rel=0.02, abs=1e-9)


def test_staleness_of_tiers_far_apart_stays_cheap() -> None:
    """A tier of 10¹² gives one update in 10¹² rounds, which has missed all that tier 1 or 2 made meanwhile."""
    assert mean_staleness(np.array([1, 10**12]), np.array([1, 1])) == pytest.approx(1.0)
    assert mean_staleness(np.array([2, 10**12]), np.array([1, 1])) == pytest.approx(1.0, rel=1e-3)
    assert mean_staleness(np.array([2, 600_000]), np.array([1, 1])) == pytest.approx(1.0, rel=1e-3)


def test_empty_first_tier() -> None:
    left, filled = (make_plan(make_fleet([12.0, 25.0], ensure_first_tier=one), 10.0) for one in (False, True))
    assert left.round_s == {"lesson": 10.0, "fedavg": 25.0, "fedcs": None}
    assert left.to_dict()["promoted"] is None
    assert (filled.round_s["fedcs"], filled.tiers.tolist()) == (10.0, [1, 3])
    assert filled.to_dict()["promoted"] == {"client": 0, "latency_s": 12.0}
    assert filled.to_dict()["clients"][0]["latency_s"] == 10.0
    assert make_plan(make_fleet([12.0], ensure_first_tier=True), 10.0).round_s["fedavg"] == 12.0


def test_unreachable_clients_are_counted_without_a_tier() -> None:
    plan = make_plan(make_fleet([5.0, math.inf], ensure_first_tier=True), 10.0)
    found = plan.to_dict()
    assert (plan.num_unreachable, found["unreachable"]) == (1, [1])
    assert (found["clients"][1]["tier"], found["clients"][1]["latency_s"]) == (None, None)


@settings(max_examples=15)
@given(st.floats(1e-9, 1e9) | st.just(math.inf), st.integers(0, 50), st.booleans())
def test_every_plan_is_strict_json(deadline_s: float, seed: int, ensure_first_tier: bool) -> None:
    fleet = draw_fleet(Settings(ensure_first_tier=ensure_first_tier), 20, seed)
    plan = make_plan(fleet, deadline_s)
    found = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert sum(len(tier["clients"]) for tier in found["tiers"]) == 20
    assert found["round_s"]["lesson"] <= found["round_s"]["fedavg"] * (1 + 1e-12)
    deadlines = [row["deadline_s"] for row in found["deadlines"]]
    assert deadlines == sorted(set(deadlines))


TEN = [8.0, 10, 12, 15, 20, 25, 30, 40, 50, 70]
"""The fastest tenth need 8 s, nine tenths 50 s."""


@pytest.mark.parametrize(
    ("latencies", "expected"),
    [
        (TEN, [5, 10, 20, 30, 60, 70]),
        ([*TEN, 1e6], [5, 10, 20, 30, 60, 1e6]),
        # from 8 / 4 = 2 ms to 50 ms in ratios of 25^(1/4) = 2.236: 2, 4.47, 10, 22.4 and 50 ms
        ([one / 1000 for one in TEN], [0.002, 0.004, 0.01, 0.02, 0.05, 0.07]),
        ([2000.0] * 3, [500, 700, 1000, 2000]),  # 500, 707, 1000, 1414 and 2000
    ],
)
def test_compared_deadlines_suit_the_fleet(latencies: list[float], expected: list[float]) -> None:
    plan = make_plan(make_fleet(latencies), max(one for one in latencies if one < math.inf))
    assert [row.deadline_s for row in plan.deadlines] == expected


@pytest.mark.parametrize(
    ("latency_s", "deadline_s", "rounds", "word"),
    [
        (5.0, 0.0, 12, "deadline_s"),
        (5.0, 1e-300, 12, "deadline_s"),
        (5.0, 10.0, 0, "rounds"),
        (math.inf, 10.0, 12, "reach"),
    ],
)
def test_plans_that_cannot_be_made(latency_s: float, deadline_s: float, rounds: int, word: str) -> None:
    with pytest.raises(InputError, match=word):
        make_plan(make_fleet([latency_s], ensure_first_tier=True), deadline_s, num_rounds=rounds)


def test_no_deadline_is_proposed_if_no_client_can_be_reached() -> None:
    with pytest.raises(InputError, match="reach"):
        propose_deadline_s(make_fleet([math.inf]))


@pytest.mark.parametrize(
    ("latencies", "deadline_s"),
    [
        ([40.0, 12.3, 10.0, 30.0, 50.0, 60.0, 70.0, 80.0], 14.0),  # two of eight: 12.3 · 1.1 = 13.53
        ([40.0, 12.3, 10.0, 30.0], 11.0),  # one of four: exactly 11
        ([100.0], 110.0),  # 1.1 · 100 is a little over 110 in floating point
        ([9.05], 10.0),  # 9.955: the next of two digits has one more place
        ([1234.0, math.inf, math.inf, math.inf, math.inf], 1400.0),  # 1357.4; who cannot be reached does not count
    ],
)
def test_proposed_deadline_by_hand(latencies: list[float], deadline_s: float) -> None:
    assert propose_deadline_s(make_fleet(latencies)) == deadline_s


def test_plan_ignores_injected_faults() -> None:
    plain, faulty = (Settings(num_clients=5, slowdown=0.5, disconnect_during=share) for share in (0.0, 0.9))
    plans = [make_plan(draw_fleet(plain), 20.0, settings=one).to_dict() for one in (plain, faulty)]
    assert plans[0] == plans[1]
