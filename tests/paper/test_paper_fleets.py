from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet
from lesson import Settings, assign_tiers, draw_fleet
from lesson.experiments.measures import Estimate
from lesson.paper.fleets import (
    deadline_effects,
    latency_summary,
    look_at_merges,
    mean_round_s,
    round_lengths,
    towards_zero,
)


@pytest.mark.parametrize(
    ("latencies", "deadline_s", "fedavg", "fedcs", "lesson"),
    [
        ([5.0, 16.0, 38.0], 10.0, 38.0, 10.0, 10.0),
        ([5.0, 7.0], 10.0, 7.0, 10.0, 7.0),  # all in tier 1: LESSON is FedAvg
        ([12.0, 38.0], 10.0, 38.0, 10.0, 10.0),  # nobody in tier 1: the fastest is put there, but not for FedAvg
        ([12.0, 13.0], 12.5, 13.0, 12.5, 12.5),
    ],
)
def test_round_lengths_of_small_fleets(
    latencies: list[float], deadline_s: float, fedavg: float, fedcs: float, lesson: float
) -> None:
    fleet = make_fleet(latencies, ensure_first_tier=True)
    found = [mean_round_s(name, fleet, deadline_s) for name in ("fedavg", "fedcs", "lesson")]
    assert found == pytest.approx([fedavg, fedcs, lesson])
    assert mean_round_s("lesson", fleet, deadline_s, close_early=False) == pytest.approx(deadline_s)


def test_table_2() -> None:
    by_draw = round_lengths(num_draws=60)
    groups = by_draw.groupby(["scenario", "strategy", "paper_s"])["round_s"]
    for (scenario, strategy, paper_s), lengths in groups:
        ours = Estimate.of(lengths.to_numpy())
        assert len(lengths) == 60
        if scenario == "released":
            assert abs(ours.mean - paper_s) <= ours.half + 1e-9, strategy
    wide = by_draw[by_draw["scenario"] == "printed"].pivot(index="draw", columns="strategy", values="round_s")
    assert wide["fedavg"].mean() == pytest.approx(18.0, abs=0.5)
    np.testing.assert_allclose(wide["fedcs"], 20.0)
    np.testing.assert_allclose(wide["lesson"], np.minimum(wide["fedavg"], 20.0))
    np.testing.assert_allclose(wide["lesson, close_early = false"], 20.0)


@pytest.mark.parametrize(
    ("values", "seconds", "shares", "updates_per_round"),
    [
        ({"preset": "printed"}, [18.0, 4.7], [0.272, 0.995, 0.005, 0.0], 49.9),
        ({"preset": "released"}, [68.3, 28.8], [0.703, 0.215, 0.558, 0.97], 28.3),
        ({"latency_passes": 1}, [46.0, 12.6], [0.43, 0.758, 0.211, 0.0], 43.7),
    ],
    ids=str,
)
def test_documented_latencies(
    values: dict[str, Any], seconds: list[float], shares: list[float], updates_per_round: float
) -> None:
    means = latency_summary(Settings(**values)).mean()
    assert means[["slowest_s", "median_s"]].round(1).tolist() == seconds
    assert means[["compute_share", "tier_1_share", "tier_2_share", "nobody_within_10s"]].round(3).tolist() == shares
    assert means["updates_per_round"].round(1) == updates_per_round


def test_effects_of_a_longer_deadline() -> None:
    """At any draw, not only in the mean: the paper's reason for Fig. 8."""
    frame = deadline_effects(num_draws=20)
    for name, sign in (("num_tiers", -1), ("updates_per_round", 1), ("staleness", -1)):
        wide = frame.pivot(index="draw", columns="deadline_s", values=name)
        assert np.all(sign * np.diff(wide.to_numpy(float), axis=1) > 0), name
    latencies = draw_fleet(Settings(), seed=7).latency_s
    here = frame.query("deadline_s == 20 and draw == 7").iloc[0]
    tiers = np.ceil(latencies / 20)
    assert here["num_tiers"] == len(np.unique(tiers))
    assert here["updates_per_round"] == pytest.approx(np.sum(1 / tiers))
    assert here["staleness"] == pytest.approx(np.sum((tiers - 1) / tiers) / np.sum(1 / tiers))


def test_merges_by_hand() -> None:
    """τ = 2: client 0 (3 s) is merged every 4 s, client 1 (5 s) every 6 s, each 1 s after it arrived. In (12, 24] that
    is 16, 20, 24 and 18, 24: three of four merges take one update; five updates of 12·(1/3 + 1/5) = 6.4.
    """
    found = look_at_merges(make_fleet([3.0, 5.0]), 2.0, until_s=24.0)
    assert found == pytest.approx({"single_share": 3 / 4, "wait_s": 1.0, "updates_of_async": 5 / 6.4})


def test_deadline_that_divides_every_latency_is_asynchronous() -> None:
    """τ = 0.5 with 3 s and 5 s: in (15, 30] at 18, 21, 24, 27, 30 and 20, 25, 30, at once."""
    found = look_at_merges(make_fleet([3.0, 5.0]), 0.5, until_s=30.0)
    assert found == pytest.approx({"single_share": 6 / 7, "wait_s": 0.0, "updates_of_async": 1.0}, abs=1e-12)


def test_merges_follow_equation_8() -> None:
    fleet = draw_fleet(Settings(), seed=2)
    tiers = assign_tiers(fleet.latency_s, 3.0)
    sizes = np.array([(round % tiers == 0).sum() for round in range(51, 101)])
    found = look_at_merges(fleet, 3.0, until_s=300.0)
    assert found["single_share"] == np.mean(sizes[sizes > 0] == 1)
    assert found["updates_of_async"] == pytest.approx(sizes.sum() / np.sum(150 / fleet.latency_s))


def test_short_deadline_approaches_asynchronous_learning() -> None:
    """An update waits half a deadline on average, as arrivals fall anywhere in a round."""
    frame = towards_zero((1.0, 10.0), num_draws=3, until_s=240.0)
    assert frame[["deadline_s", "draw"]].to_numpy().tolist() == [
        [tau, draw] for tau in (1.0, 10.0) for draw in range(3)
    ]
    table = frame.groupby("deadline_s").mean()
    assert table.loc[1.0, "wait_s"] == pytest.approx(0.5, abs=0.1)
    assert table.loc[10.0, "wait_s"] == pytest.approx(5.0, abs=1.0)
    assert table.loc[1.0, "single_share"] > table.loc[10.0, "single_share"]
    assert 1 > table.loc[1.0, "updates_of_async"] > 0.95 > table.loc[10.0, "updates_of_async"]
