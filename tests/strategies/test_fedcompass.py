"""FedCompass on four clients, written out by hand: transfers take 2, 4, 10 and 30 s, and so does each local step.

Q_min = 1, Q_max = 5, λ = 1.5.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import Scripted, disconnecting, make_fleet, traced
from helpers.strategies import Run, follow
from lesson import FedCompass, Fleet, Settings, make_loop


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet([4.0, 8.0, 20.0, 60.0])


def steps(run: Run) -> list[list[int]]:
    return [plan.local_steps.tolist() for plan in run.plans if plan.local_steps is not None]


def test_clients_join_the_group_that_allows_the_most_steps(fleet: Fleet) -> None:
    """0 s: client 0 opens A with 5 steps, T = 2 + 10 = 12, T_max = 18. 1 has 8 s to train for A: 2 steps. 2 has 2 s, so
    it opens B: client 0 could be back at 18 + 12 = 30, 2 steps. 3 opens C: at 30 it can do none, at the 45 + 60 of B 2
    steps, T = 90, T_max = 135.
    12 s: B and C would allow client 0 more than 5 steps, so it opens D with 5, T = 24. 1 can do 3 steps for B and 2 for
    D: B, at 28. 24 s: 0 can do 2 steps for B.
    30 s: B is complete. 0 opens E, T = 42; 1 can do 2 steps for it, 2 none, but (90 − 30 − 10) / 10 = 5 for C.

    At 30 s, client 1 started from version 1, 2 from version 0, 0 from version 2. Each has a quarter of the data."""
    run = follow(FedCompass(), fleet, 5)
    assert run.trace == [
        (12.0, [0, 1, 2, 3], [0, 1], [0, 0]),
        (24.0, [0, 1], [0], [0]),
        (30.0, [0], [1, 2, 0], [1, 2, 0]),
        (42.0, [0, 1, 2], [0, 1], [0, 0]),
        (54.0, [0, 1], [0, 1], [0, 0]),
    ]
    assert steps(run)[:4] == [[5, 2, 2, 2], [5, 3], [2], [5, 2, 5]]
    assert [plan.closes.by_s for plan in run.plans[:4]] == [18.0, 30.0, 45.0, 48.0]
    assert {merge.of for merge in run.merges} == {"updates"}
    assert run.merges[0].weights == pytest.approx([0.225, 0.225])
    assert run.merges[2].weights == pytest.approx([0.225 / 2**0.5, 0.225 / 3**0.5, 0.225])


def test_weights_are_shares_of_all_connected_clients() -> None:
    fleet = make_fleet([4.0, 8.0, 20.0, np.inf], weight=[1, 2, 5, 8])
    run = follow(FedCompass(server_lr=1.0, a=0.0), fleet, 1)
    assert run.merges[0].weights == pytest.approx([1 / 8, 2 / 8])


def test_late_update_waits_for_the_next_group(tmp_path: Path) -> None:
    """Both clients take 2 + 2 s, but the second local training of client 1 takes 10 s a step: it arrives at 12 + 52 s.
    Its group, T = 24, is aggregated without it at T_max = 12 + 18 s. Client 0 goes on every 12 s from 30 s. At 64 s,
    client 1 starts again at once; its update waits for client 0 at 66 s and is then three versions old."""
    rows = "client,round,compute_s,upload_s 0,1,2,2 1,1,2,2 1,2,10,2 1,3,2,2"
    settings = Settings(trace=traced(tmp_path / "trace.csv", rows))
    run = follow(FedCompass(), make_fleet([4.0, 4.0]), 6, settings=settings)
    assert run.rounds == [
        (12.0, [0, 1], [0, 1]),
        (30.0, [0, 1], [0]),
        (42.0, [0], [0]),
        (54.0, [0], [0]),
        (64.0, [0], []),
        (66.0, [1], [1, 0]),
    ]
    assert run.merges[5].weights == pytest.approx([0.45 / 4**0.5, 0.45])


@pytest.mark.parametrize(
    ("lost", "rounds"),
    [
        # Client 1 is offline from 18 to 20 s. At 24 s, there is no time left for B; it opens a group with 5 steps,
        # T = 48. B is complete without it at 30 s, when clients 0 and 2 have arrived.
        ((1, 1), [(12, [0, 1, 2, 3], [0, 1]), (24, [0, 1], [0]), (30, [0, 1], [2, 0]), (42, [0, 2], [0])]),
        # Client 1 is offline from 4 to 6 s. A is aggregated without it at 12 s, so it is late; it joins B with 3 steps,
        # and waits for it from 28 to 30 s.
        ((1, 0), [(12, [0, 1, 2, 3], [0]), (24, [0, 1], [0]), (30, [0], [1, 2, 0])]),
    ],
)
def test_client_that_lost_its_update_joins_another_group(
    fleet: Fleet, lost: tuple[int, int], rounds: list[Any]
) -> None:
    run = Run(disconnecting(FedCompass(), fleet, Scripted({lost: (0.5, 2.0)}))).step(len(rounds))
    assert run.rounds == rounds


def test_overdue_group_is_aggregated_before_clients_start(fleet: Fleet) -> None:
    """In real time, a round may open later than the last one closed. At 46 s, the T_max of B, 45 s, has passed."""
    run = Run(make_loop(FedCompass(), fleet)).step(1)
    run.simulation.now_s = 46.0
    run.step(2)
    assert [(one.start_s, one.started.tolist(), one.merged.tolist()) for one in run.records[1:]] == [
        (46.0, [], [2]),
        (46.0, [0, 1, 2], [0, 1]),
    ]


@pytest.mark.parametrize(
    ("options", "usual_steps", "expected"),
    [
        # T = 22; (22 − 4) / 4 = 4.5 steps for it; (33 + 22 − 10) / 10 = 4.5 steps, T = 50; (75 + 110 − 30) / 30 = 5.2.
        ({"min_steps": 2}, 1, [10, 4, 4, 5]),
        ({"max_steps": 1}, 1, [1, 1, 1, 1]),
        ({"min_steps": 2, "max_steps": 2}, 1, [2, 2, 2, 2]),
        # Usually 3 steps in the same time: at most 15, and the times of the first test allow 6, 6 and 7.5.
        ({}, 3, [15, 6, 6, 7]),
    ],
)
def test_limits_of_the_number_of_steps(options: dict[str, Any], usual_steps: int, expected: list[int]) -> None:
    fleet = make_fleet([4.0, 8.0, 20.0, 60.0], local_steps=usual_steps)
    assert steps(follow(FedCompass(**options), fleet, 1)) == [expected]
