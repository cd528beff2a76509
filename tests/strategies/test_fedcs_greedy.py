"""Nishio and Yonetani's FedCS on four clients, written out by hand, and against Algorithm 3 as printed.

Computing takes 2.5, 8, 15 and 19 s, an upload alone on the shared channel 1, 10, 2 and 1 s. Θ = 0: rounds would grow by
3.5, 18, 17 and 20 s, so client 0 is first. Θ = 3.5: by 4.5 + 10, 11.5 + 2 and 15.5 + 1 s, so client 2 is next. Θ = 17:
client 1 has long been ready and takes 10 s, client 3 2 + 1 s, so 3 is third. Θ = 20: client 1 would make it 30.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fleets import make_fleet
from lesson import Fleet, InputError, Settings, read_fleet, simulate
from lesson.strategies import FedCSGreedy
from lesson.strategies.fedcs_greedy import schedule


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet([5.0, 16.0, 30.0, 38.0], shared_upload_s=[1.0, 10.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("deadline_s", "order", "round_s"),
    [
        (3.5, [0], 3.5),
        (16.9, [0], 3.5),
        (17.0, [0, 2], 17.0),
        (29.9, [0, 2, 3], 20.0),
        (30.0, [0, 2, 3, 1], 30.0),
        (np.inf, [0, 2, 3, 1], 30.0),
    ],
)
def test_trace(fleet: Fleet, deadline_s: float, order: list[int], round_s: float) -> None:
    """The same in every round; a round lasts until the last upload is in, not until the deadline."""
    records = simulate(FedCSGreedy(deadline_s), fleet, rounds=12)
    trace = [(record.end_s, record.started.tolist(), record.merged.tolist()) for record in records]
    assert trace == [(round * round_s, order, order) for round in range(1, 13)]


def test_energy_follows_the_upload_time(fleet: Fleet) -> None:
    """Client i computes for i + 1 J, and would send 2.5, 8, 15, 19 s for 10·(i + 1) J; it sends 1, 10, 2 and 1 s."""
    record = next(simulate(FedCSGreedy(29.0), fleet, rounds=1))
    assert record.compute_j == 1 + 3 + 4
    assert record.transmit_j == pytest.approx(10 * 1 / 2.5 + 30 * 2 / 15 + 40 * 1 / 19)


def test_if_no_candidate_fits_the_round_lasts_until_the_deadline(fleet: Fleet) -> None:
    """Within 10 s client 0 alone fits. Two of four are asked, 0 among them in half of the rounds."""
    records = list(simulate(FedCSGreedy(10.0, fraction=0.5), fleet, rounds=100))
    for record in records:
        assert record.started.tolist() == record.merged.tolist()
        assert (record.started.tolist(), round(record.end_s - record.start_s, 6)) in [([0], 3.5), ([], 10.0)]
    assert abs(sum(len(record.merged) for record in records) - 50) < 20  # four standard deviations of 5


def test_only_candidates_are_scheduled(fleet: Fleet) -> None:
    """Without 2, client 1 is second, at 8 + 10 = 18 s, for 3 would grow the round from 3.5 to 20 s."""
    records = simulate(FedCSGreedy(1e3, fraction=0.75), fleet, rounds=50)
    assert {(*record.merged.tolist(), record.end_s - record.start_s) for record in records} == {
        (2, 3, 1, 30.0),
        (0, 1, 3, 20.0),
        (0, 2, 1, 27.0),
        (0, 2, 3, 20.0),
    }


times = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), min_size=1, max_size=12)


@given(times, st.integers(1, 60))
def test_schedule_is_algorithm_3(times: list[tuple[int, int]], deadline_s: int) -> None:
    compute_s, upload_s = np.array(times, dtype=float).T
    left, theta, expected = set(range(len(times))), 0.0, []
    while left:
        growth = {client: upload_s[client] + max(0.0, compute_s[client] - theta) for client in left}
        best = min(left, key=lambda client: (growth[client], compute_s[client] > theta, client))
        left.remove(best)
        if theta + growth[best] <= deadline_s:
            theta += growth[best]
            expected.append(best)
    assert schedule(compute_s, upload_s, float(deadline_s)).tolist() == expected


def test_deadline_met_exactly_despite_rounding() -> None:
    """0.1 + 0.2 is 0.30000000000000004."""
    assert schedule(np.array([0.1]), np.array([0.2]), 0.3).tolist() == [0]


def test_upload_times_of_a_measured_fleet(tmp_path: Path) -> None:
    """a sends from 2 to 3 s, b, ready at 1 s, from 3 to 7 s."""
    path = tmp_path / "fleet.csv"
    path.write_text("client,latency_s,compute_s,upload_s\na,3,2,1\nb,5,1,4\nc,30,10,20\n")
    record = next(simulate(FedCSGreedy(10.0), read_fleet(path, Settings()), rounds=1))
    assert (record.end_s, record.merged.tolist(), record.transmit_j) == (7.0, [0, 1], None)
    path.write_text("client,latency_s\na,3\n")
    with pytest.raises(InputError, match="compute_s and upload_s"):
        next(simulate(FedCSGreedy(10.0), read_fleet(path, Settings()), rounds=1))
