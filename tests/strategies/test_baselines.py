"""FedAvg, FedCS, FedAsync, FedAT and SemiSyncSteps, written out by hand; `fleet` takes 5, 16, 30 and 38 s."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, traced
from helpers.strategies import follow
from helpers.views import arrived, view
from lesson import FedAvg, FedCS, Fleet, InputError, Settings, make_loop, simulate
from lesson.core.errors import RunStoppedError
from lesson.strategies import FedAsync, FedAT, SemiSyncSteps


def test_fedavg(fleet: Fleet) -> None:
    """Everybody, every 38 s."""
    assert follow(FedAvg(), fleet, 12).trace == [
        (38.0 * round, [0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 0, 0]) for round in range(1, 13)
    ]


def test_fedavg_with_a_fraction_waits_for_the_drawn_clients(fleet: Fleet) -> None:
    """round(0.5·4) = 2 clients a round, which lasts as long as the slower of them; each is drawn in half the rounds."""
    trace = follow(FedAvg(fraction=0.5), fleet, 400).trace
    for (start_s, *_), (end_s, starts, merged, staleness) in zip([(0.0,), *trace], trace, strict=False):
        assert end_s - start_s == pytest.approx([5.0, 16.0, 30.0, 38.0][max(starts)])
        assert (sorted(merged), staleness) == (starts, [0, 0])
    drawn = np.bincount(np.concatenate([starts for _, starts, _, _ in trace]), minlength=4)
    assert np.all(np.abs(drawn - 200) < 40)  # four standard deviations of 10
    assert all(len(starts) == 1 for _, starts, _ in follow(FedAvg(fraction=0.01), fleet, 5).rounds)


def test_fedcs(fleet: Fleet) -> None:
    """Client 0 alone, every 10 s."""
    assert follow(FedCS(deadline_s=10.0), fleet, 12).trace == [(10.0 * round, [0], [0], [0]) for round in range(1, 13)]


def test_fedcs_drops_late_updates_and_keeps_the_round_length() -> None:
    merge = FedCS(10.0).merge(view(3), arrived([10.0, 10.0], started_round=[2, 3]))
    assert (merge.updates.tolist(), merge.drops.tolist()) == ([101], [100])
    assert FedCS(10.0).open_round(view(3, now_s=23.0), np.random.default_rng(0)).closes.interval_s == 10.0


def test_fedcs_needs_a_first_tier() -> None:
    with pytest.raises(RunStoppedError, match="deadline_s"):
        list(simulate(FedCS(deadline_s=10.0), make_fleet([15.0, 25.0]), rounds=1))
    promoted = make_fleet([15.0, 25.0], ensure_first_tier=True).at_deadline(10.0)
    first, second = simulate(FedCS(deadline_s=10.0), promoted, rounds=2)
    assert (first.merged.tolist(), bool(first.note), second.note) == ([0], True, "")


def test_fedasync(fleet: Fleet) -> None:
    """Arrivals: 0 at 5, 10, …; 1 at 16, 32; 2 at 30; 3 at 38. Every round makes a version. At 30 s clients 2, at work
    since 0 s, and 0, since 25 s, arrive together and make one version, the seventh."""
    assert follow(FedAsync(), fleet, 12).trace == [
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


@pytest.mark.parametrize(
    ("options", "fourth", "seventh", "tenth"),
    [
        # Staleness 3; 6 and 0; 9. Of the seventh round's two, the later leaves 1 − 0.5 of the earlier.
        ({"staleness": "constant"}, 0.5, [0.5 * 0.5, 0.5], 0.5),
        ({"staleness": "polynomial", "a": 1.0}, 0.5 / 4, [0.5 / 7 * 0.5, 0.5], 0.5 / 10),
        ({}, 0.5 / 4**0.5, [0.5 / 7**0.5 * 0.5, 0.5], 0.5 / 10**0.5),
        ({"staleness": "hinge"}, 0.5, [0.5 / (10 * 2 + 1) * 0.5, 0.5], 0.5 / (10 * 5 + 1)),
        ({"staleness": "hinge", "a": 2.0, "b": 1}, 0.5 / 5, [0.5 / 11 * 0.5, 0.5], 0.5 / 17),
    ],
)
def test_fedasync_mixes_by_staleness(
    fleet: Fleet, options: dict[str, Any], fourth: float, seventh: list[float], tenth: float
) -> None:
    merges = follow(FedAsync(mixing=0.5, **options), fleet, 10).merges
    assert merges[0].weights.tolist() == [0.5]
    assert merges[3].weights == pytest.approx([fourth])
    assert merges[6].weights == pytest.approx(seventh)
    assert merges[9].weights == pytest.approx([tenth])


def test_fedasync_mixes_simultaneous_arrivals_one_after_the_other() -> None:
    """Three models at once, α = 0.5 each: (((w + a)/2 + b)/2 + c)/2 = w/8 + a/8 + b/4 + c/2."""
    merges = follow(FedAsync(mixing=0.5), make_fleet([1.0, 1.0, 1.0]), 1).merges
    assert merges[0].weights.tolist() == [0.125, 0.25, 0.5]


def test_fedat() -> None:
    """Tier 1 is clients 0 and 1, reporting every 16 s; tier 2 is 2 and 3, every 38 s. At 38 s client 0 has been waiting
    for one second: its tier reports at 48 s. A tier weighs as often as the other has reported."""
    run = follow(FedAT(num_tiers=2), make_fleet([5.0, 16.0, 30.0, 38.0], weight=[1, 3, 2, 2]), 6)
    assert run.trace == [
        (16.0, [0, 1, 2, 3], [0, 1], [0, 0]),
        (32.0, [0, 1], [0, 1], [0, 0]),
        (38.0, [0, 1], [2, 3], [2, 2]),
        (48.0, [2, 3], [0, 1], [1, 1]),
        (64.0, [0, 1], [0, 1], [0, 0]),
        (76.0, [0, 1], [2, 3], [2, 2]),
    ]
    groups = [merge.groups for merge in run.merges if merge.groups is not None]
    reports = [(1, 0), (2, 0), (2, 1), (3, 1), (4, 1), (4, 2)]
    assert [dict(group.weights) for group in groups] == [
        {"tier 1": second / (first + second), "tier 2": first / (first + second)} for first, second in reports
    ]
    assert groups[0].names == ["tier 1", "tier 1"]
    assert run.merges[0].weights.tolist() == [0.25, 0.75]
    assert run.merges[2].weights.tolist() == [0.5, 0.5]


def test_fedat_tiers_have_equal_sizes() -> None:
    """Seven reachable clients in three tiers: 3, 2 and 2 of them, by latency. The second ends at 50 s."""
    run = follow(FedAT(num_tiers=3), make_fleet([70.0, 60.0, np.inf, 50.0, 40.0, 30.0, 20.0, 10.0]), 2)
    assert run.trace == [(30.0, [0, 1, 3, 4, 5, 6, 7], [7, 6, 5], [0, 0, 0]), (50.0, [5, 6, 7], [4, 3], [1, 1])]


def test_fedat_has_five_tiers_by_default_or_one_per_client() -> None:
    for num_clients, num_tiers in [(3, 3), (7, 5)]:
        (merge,) = follow(FedAT(), make_fleet([1.0 + client for client in range(num_clients)]), 1).merges
        assert merge.groups is not None
        assert len(merge.groups.weights) == num_tiers


def test_fedat_tiers_that_report_together_make_one_version() -> None:
    """1 s and 2 s: at 2 s both report. By then T = (2, 1)."""
    run = follow(FedAT(num_tiers=2), make_fleet([1.0, 2.0]), 2)
    assert run.trace[1] == (2.0, [0], [1, 0], [1, 0])
    assert run.merges[1].groups is not None
    assert run.merges[1].groups.weights == {"tier 1": 1 / 3, "tier 2": 2 / 3}


def test_fedat_with_a_fraction_waits_for_the_drawn_clients() -> None:
    """One tier, half of it: two of four clients a round."""
    run = follow(FedAT(num_tiers=1, fraction=0.5), make_fleet([1.0, 2.0, 3.0, 4.0]), 50)
    assert all(len(starts) == 2 and sorted(merged) == starts for _, starts, merged in run.rounds)
    assert {client for _, starts, _ in run.rounds for client in starts} == {0, 1, 2, 3}
    assert run.merges[0].weights.tolist() == [0.5, 0.5]


def test_semisync_steps(fleet: Fleet) -> None:
    """Computing takes 2.5, 8, 15 and 19 s a step, so the period is 2·19 = 38 s: 15, 4, 2 and 2 steps. With the uploads
    they arrive after 37.5 + 2.5, 32 + 8, 30 + 15 and 38 + 19 s; at 40 s in the order of start."""
    run = follow(SemiSyncSteps(), fleet, 2)
    assert run.trace == [(57.0, [0, 1, 2, 3], [0, 1, 2, 3], [0] * 4), (114.0, [0, 1, 2, 3], [0, 1, 2, 3], [0] * 4)]
    # Client i spends i + 1 J a step and 10·(i + 1) J on sending.
    assert (run.records[0].compute_j, run.records[0].transmit_j) == (15 * 1 + 4 * 2 + 2 * 3 + 2 * 4, 100)


def test_semisync_steps_trains_at_least_one_step(fleet: Fleet) -> None:
    """A tenth of 19 s is less than anybody's step: everybody does one, as in FedAvg."""
    assert follow(SemiSyncSteps(period_factor=0.1), fleet, 2).trace == follow(FedAvg(), fleet, 2).trace


def test_semisync_steps_continues_when_computing_takes_no_time(tmp_path: Path) -> None:
    """Client 0 computes for 1 s, then for no time, from which no number of steps follows: it then trains one step, as
    usual, which takes 1 s again. Client 1 always takes 5 s: of 10 s, that is 2 steps, and client 0's are 10."""
    rows = "client,round,compute_s,upload_s 0,1,1,1 0,2,0,1 0,3,1,1 1,1,5,1"
    settings = Settings(trace=traced(tmp_path / "trace.csv", rows))
    plans = follow(SemiSyncSteps(), make_fleet([2.0, 10.0]), 5, settings=settings).plans
    steps = [np.asarray(plan.local_steps).tolist() for plan in plans]
    assert steps == [[10, 2], [10, 2], [1, 2], [10, 2], [10, 2]]


def test_semisync_steps_rejects_extremely_unequal_clients() -> None:
    with pytest.raises(InputError, match="period_factor"):
        make_loop(SemiSyncSteps(), make_fleet([1e-4, 1e8])).step()
