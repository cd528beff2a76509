"""FedCompass on four clients, written out by hand: transfers take 2, 4, 10 and 30 s, and so does each local step.

Q_min = 1, Q_max = 5, λ = 1.5.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import Scripted, disconnecting, make_fleet, traced
from helpers.strategies import follow
from lesson import FedCompass, Fleet, InputError, RoundPlan, Settings, Simulation


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet([4.0, 8.0, 20.0, 60.0])


def planned(simulation: Simulation) -> list[RoundPlan]:
    """Return a list that receives the plans of a simulation."""
    plans: list[RoundPlan] = []
    decide = simulation.strategy.open_round
    simulation.strategy.open_round = lambda view, rng: plans.append(decide(view, rng)) or plans[-1]  # type: ignore[func-returns-value,method-assign]
    return plans


def test_clients_join_the_group_that_allows_the_most_steps(fleet: Fleet) -> None:
    """0 s: client 0 opens A with 5 steps, T = 2 + 10 = 12, T_max = 18. 1 has 8 s to train for A: 2 steps. 2 has 2 s, so
    it opens B: client 0 could be back at 18 + 12 = 30, 2 steps. 3 opens C: at 30 it can do none, at the 45 + 60 of B 2
    steps, T = 90, T_max = 135.
    12 s: B and C would allow client 0 more than 5 steps, so it opens D with 5, T = 24. 1 can do 3 steps for B and 2 for
    D: B, at 28. 24 s: 0 can do 2 steps for B.
    30 s: B is complete. 0 opens E, T = 42; 1 can do 2 steps for it, 2 none, but (90 − 30 − 10) / 10 = 5 for C."""
    simulation = Simulation(FedCompass(), fleet)
    plans = planned(simulation)
    for _ in range(4):
        simulation.step()
    assert [plan.starts.tolist() for plan in plans] == [[0, 1, 2, 3], [0, 1], [0], [0, 1, 2]]
    assert [plan.local_steps.tolist() for plan in plans if plan.local_steps is not None] == [
        [5, 2, 2, 2],
        [5, 3],
        [2],
        [5, 2, 5],
    ]
    assert [plan.closes.by_s for plan in plans] == [18.0, 30.0, 45.0, 48.0]


def test_groups_are_aggregated_by_staleness(fleet: Fleet) -> None:
    """At 30 s, client 1 started from version 1, 2 from version 0, 0 from version 2. Each has a quarter of the data."""
    trace, merges = follow(FedCompass(), fleet, 5)
    assert trace == [
        (12.0, [0, 1, 2, 3], [0, 1], [0, 0]),
        (24.0, [0, 1], [0], [0]),
        (30.0, [0], [1, 2, 0], [1, 2, 0]),
        (42.0, [0, 1, 2], [0, 1], [0, 0]),
        (54.0, [0, 1], [0, 1], [0, 0]),
    ]
    assert {merge.of for merge in merges} == {"updates"}
    assert merges[0].weights == pytest.approx([0.225, 0.225])
    assert merges[2].weights == pytest.approx([0.225 / 2**0.5, 0.225 / 3**0.5, 0.225])


def test_weights_are_shares_of_all_connected_clients() -> None:
    fleet = make_fleet([4.0, 8.0, 20.0, np.inf], weight=[1, 2, 5, 8])
    _, merges = follow(FedCompass(server_lr=1.0, a=0.0), fleet, 1)
    assert merges[0].weights == pytest.approx([1 / 8, 2 / 8])


def test_a_late_update_waits_for_the_next_group(tmp_path: Path) -> None:
    """Both clients take 2 + 2 s, but the second local training of client 1 takes 10 s a step: it arrives at 12 + 52 s.
    Its group, T = 24, is aggregated without it at T_max = 12 + 18 s. Client 0 goes on every 12 s from 30 s. At 64 s,
    client 1 starts again at once; its update waits for client 0 at 66 s and is then three versions old."""
    rows = "client,round,compute_s,upload_s 0,1,2,2 1,1,2,2 1,2,10,2 1,3,2,2"
    settings = Settings(trace=traced(tmp_path / "trace.csv", rows))
    simulation = Simulation(FedCompass(), make_fleet([4.0, 4.0]), settings=settings)
    merges: list[Any] = []
    decide = simulation.strategy.merge
    simulation.strategy.merge = lambda view, arrived: merges.append(decide(view, arrived)) or merges[-1]  # type: ignore[func-returns-value,method-assign]
    records = [simulation.step() for _ in range(6)]
    assert [(one.end_s, one.started.tolist(), one.merged.tolist()) for one in records if one] == [
        (12.0, [0, 1], [0, 1]),
        (30.0, [0, 1], [0]),
        (42.0, [0], [0]),
        (54.0, [0], [0]),
        (64.0, [0], []),
        (66.0, [1], [1, 0]),
    ]
    assert merges[5].weights == pytest.approx([0.45 / 4**0.5, 0.45])


def test_a_client_that_lost_its_update_leaves_its_group(fleet: Fleet) -> None:
    """As in the first test, but client 1 is offline from 18 to 20 s. At 24 s, there is no time left for B; it opens a
    group with 5 steps, T = 48. B is complete without it at 30 s, when clients 0 and 2 have arrived."""
    simulation = disconnecting(FedCompass(), fleet, Scripted({(1, 1): (0.5, 2.0)}))
    records = [simulation.step() for _ in range(4)]
    assert [(one.end_s, sorted(one.started.tolist()), one.merged.tolist()) for one in records if one] == [
        (12.0, [0, 1, 2, 3], [0, 1]),
        (24.0, [0, 1], [0]),
        (30.0, [0, 1], [2, 0]),
        (42.0, [0, 2], [0]),
    ]


def test_a_late_client_that_lost_its_update_joins_another_group(fleet: Fleet) -> None:
    """As in the first test, but client 1 is offline from 4 to 6 s. A is aggregated without it at 12 s, so it is late;
    it joins B with 3 steps, and waits for it from 28 to 30 s."""
    simulation = disconnecting(FedCompass(), fleet, Scripted({(1, 0): (0.5, 2.0)}))
    records = [simulation.step() for _ in range(3)]
    assert [(one.end_s, sorted(one.started.tolist()), one.merged.tolist()) for one in records if one] == [
        (12.0, [0, 1, 2, 3], [0]),
        (24.0, [0, 1], [0]),
        (30.0, [0], [1, 2, 0]),
    ]


def test_a_group_whose_latest_time_has_passed_is_aggregated_before_clients_start(fleet: Fleet) -> None:
    """In real time, a round may open later than the last one closed. At 46 s, the T_max of B, 45 s, has passed."""
    simulation = Simulation(FedCompass(), fleet)
    simulation.step()
    simulation.now_s = 46.0
    records = [simulation.step() for _ in range(2)]
    assert [(one.start_s, one.started.tolist(), one.merged.tolist()) for one in records if one] == [
        (46.0, [], [2]),
        (46.0, [0, 1, 2], [0, 1]),
    ]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        # T = 22; (22 − 4) / 4 = 4.5 steps for it; (33 + 22 − 10) / 10 = 4.5 steps, T = 50; (75 + 110 − 30) / 30 = 5.2.
        ({"min_steps": 2}, [10, 4, 4, 5]),
        ({"max_steps": 1}, [1, 1, 1, 1]),
        ({"min_steps": 2, "max_steps": 2}, [2, 2, 2, 2]),
        # Usually 3 steps in the same time: at most 15, and the times of the first test allow 6, 6 and 7.5.
        ({}, [15, 6, 6, 7]),
    ],
)
def test_limits_of_the_number_of_steps(fleet: Fleet, options: dict[str, int], steps: list[int]) -> None:
    if not options:
        fleet = make_fleet([4.0, 8.0, 20.0, 60.0], local_steps=3)
    simulation = Simulation(FedCompass(**options), fleet)  # type: ignore[arg-type]
    plans = planned(simulation)
    simulation.step()
    assert plans[0].local_steps is not None
    assert plans[0].local_steps.tolist() == steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_steps": 0}, "min_steps must be a whole number >= 1 and <= 10000000, got 0"),
        ({"min_steps": 3, "max_steps": 2}, "max_steps must be >= min_steps = 3, got 2"),
        ({"min_steps": 2**62}, f"min_steps must be a whole number >= 1 and <= 10000000, got {2**62}"),
        ({"max_steps": 10**30}, f"max_steps must be a whole number >= 1 and <= 10000000, got {10**30}"),
        ({"latest_factor": 0.5}, "latest_factor must be a finite number >= 1, got 0.5"),
        ({"server_lr": 0}, "server_lr must be a finite number > 0, got 0"),
        ({"a": -1}, "a must be a finite number >= 0, got -1"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        FedCompass(**options)
    assert str(caught.value) == message


def test_compute_times_are_required(fleet: Fleet) -> None:
    fleet.compute_s[2] = np.nan
    with pytest.raises(InputError, match="fedcompass needs compute_s > 0 of every client, got nan for client 2"):
        Simulation(FedCompass(), fleet).step()
