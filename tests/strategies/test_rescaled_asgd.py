"""Rescaled ASGD on clients 0 to 3, which take 5, 16, 30 and 38 s, by hand, and its relation to Eq. (12)."""

from collections import defaultdict

import numpy as np
import pytest

from helpers.fleets import make_fleet
from helpers.strategies import follow
from lesson import Fleet, Lesson, RescaledASGD


def test_rescaled_asgd(fleet: Fleet) -> None:
    """t̄ = (5 + 16 + 30 + 38) / 4 = 22.25 s. Every arrival makes a version; at 30 s, those of client 2, from version 0,
    and client 0 make version 7. Client 3, from version 0, is 9 stale at 38 s."""
    run = follow(RescaledASGD(server_lr=0.5), fleet, 12)
    assert run.trace == [
        (5.0, [0, 1, 2, 3], [0], [0]),
        (10.0, [0], [0], [0]),
        (15.0, [0], [0], [0]),
        (16.0, [0], [1], [3]),
        (20.0, [1], [0], [1]),
        (25.0, [0], [0], [0]),
        (30.0, [0], [2, 0], [6, 0]),
        (32.0, [0, 2], [1], [3]),
        (35.0, [1], [0], [1]),
        (38.0, [0], [3], [9]),
        (40.0, [3], [0], [1]),
        (45.0, [0], [0], [0]),
    ]
    assert {merge.of for merge in run.merges} == {"updates"}
    weights = [merge.weights.tolist() for merge in run.merges]
    assert weights[0] == pytest.approx([0.5 * 5 / 22.25])
    assert weights[3] == pytest.approx([0.5 * 16 / 22.25])
    assert weights[6] == pytest.approx([0.5 * 30 / 22.25, 0.5 * 5 / 22.25])
    assert weights[9] == pytest.approx([0.5 * 38 / 22.25])


def test_all_clients_contribute_the_same_step_size_over_a_cycle() -> None:
    """Clients of 5, 8 and 12 s, t̄ = 25/3 s, report 24, 15 and 10 times in 120 s: 24·5 = 15·8 = 10·12 = 120."""
    run = follow(RescaledASGD(server_lr=1.0), make_fleet([5.0, 8.0, 12.0]), 60)
    totals = defaultdict[int, float](float)
    for record, merge in zip(run.records, run.merges, strict=True):
        if record.end_s <= 120:
            for client, weight in zip(record.merged.tolist(), merge.weights.tolist(), strict=True):
                totals[client] += weight
    assert totals == pytest.approx(dict.fromkeys(range(3), 120 / (25 / 3)))


@pytest.mark.parametrize(("deadline_s", "scaled_s"), [(20.0, [20, 20, 40, 40]), (7.0, [7, 21, 35, 42])])
def test_tau_times_the_factor_of_eq_12_is_the_latency_rounded_up(
    fleet: Fleet, deadline_s: float, scaled_s: list[float]
) -> None:
    """The latencies are 5, 16, 30 and 38 s; clients of tier j train with j·δ."""
    (plan,) = follow(Lesson(deadline_s), fleet, 1).plans
    assert (deadline_s * np.asarray(plan.lr_scale)).tolist() == scaled_s


def test_lesson_with_short_deadlines_has_the_step_sizes_of_rescaled_asgd() -> None:
    """As τ → 0, τ·j approaches the latency, from above and by less than τ, so that step sizes have the ratios of
    Rescaled ASGD."""
    fleet = make_fleet([5.0123, 16.4567, 30.891, 38.2345])
    of_client = dict[int, float]()
    for record, merge in zip((run := follow(RescaledASGD(server_lr=1.0), fleet, 12)).records, run.merges, strict=True):
        of_client |= dict(zip(record.merged.tolist(), merge.weights.tolist(), strict=True))
    rescaled = np.array([of_client[client] for client in range(4)])
    for deadline_s in (1.0, 0.1, 0.001):
        (plan,) = follow(Lesson(deadline_s), fleet, 1).plans
        excess_s = deadline_s * np.asarray(plan.lr_scale) - fleet.latency_s
        assert np.all((excess_s > -1e-9) & (excess_s < deadline_s))
    assert plan.lr_scale / np.mean(plan.lr_scale) == pytest.approx(rescaled, rel=1e-3)


def test_lesson_contributes_the_same_step_size_over_a_cycle(fleet: Fleet) -> None:
    """τ = 10 s: clients of tiers 1 to 4 are due in 12, 6, 4 and 3 of 12 rounds, and 12·1 = 6·2 = 4·3 = 3·4."""
    run = follow(Lesson(10.0), fleet, 12)
    due = np.bincount(np.concatenate([record.merged for record in run.records]))
    assert (due * run.plans[0].lr_scale).tolist() == [12, 12, 12, 12]
