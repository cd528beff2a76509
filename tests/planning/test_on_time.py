import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, traced
from lesson import InputError, Settings, draw_fleet, read_fleet
from lesson.planning.on_time import find_deadline_s, simulate_on_time
from lesson.planning.plan import evaluate_deadline, make_plan, propose_deadline_s

RAYLEIGH = Settings(fading="rayleigh", coherence_s=10.0)


def working(tmp_path: Path, rows: str, **changes: Any) -> Settings:
    """Settings with a trace of these rows: client, local training, compute and upload time."""
    return Settings(trace=traced(tmp_path / "work.csv", f"client,round,compute_s,upload_s {rows}"), **changes)


def test_slots_of_a_trace_counted_by_hand(tmp_path: Path) -> None:
    """Deadline 10 s, 60 rounds: 20 uploads of the slowest, which takes 25 s. The server's estimate is the last time.

    Client 0 takes 7 s, 60 slots of tier 1, all made. Client 2 takes 25 s, 20 slots of tier 3, all made. Client 1 takes
    8 and 12 s in turn. It makes its first slot, of tier 1. It starts in tier 1 again at 10 s, arrives at 22 s instead
    of 20, is merged at 30 s, starts in tier 2 and arrives at 38 s, before 50; so on every 40 s. By 600 s 15 slots of
    tier 1 have ended, at 20, 60, …, 580 s, all missed, and 14 of tier 2, at 50, …, 570 s, all made.
    """
    settings = working(tmp_path, "0,1,3,4 1,1,5,3 1,2,5,7 2,1,5,20")
    fleet = draw_fleet(settings, 3)
    found = simulate_on_time(fleet, 10.0, settings)
    assert found.by_tier == {1: 61 / 76, 2: 1.0, 3: 1.0}
    assert found.share == 95 / 110
    plan = make_plan(fleet, 10.0, num_rounds=3, settings=settings)
    tiers = [(row.tier, row.clients.tolist(), row.on_time) for row in plan.tier_rows]
    assert tiers == [(1, [0, 1], 61 / 76), (3, [2], 1)]
    assert {row.deadline_s: row.on_time for row in plan.deadlines}[10.0] == 95 / 110
    assert [sorted(record.merged.tolist()) for record in plan.rounds] == [[0, 1], [0], [0, 1, 2]]
    assert plan.varying == ["trace"]


def test_half_of_the_latencies_are_above_their_mean(tmp_path: Path) -> None:
    """The deadline is the mean of a normal latency. A plan without settings simulates it, too."""
    path = tmp_path / "fleet.csv"
    path.write_text("client,latency_s,sd_s,count\na,10,1,100\n")
    plan = make_plan(read_fleet(path), 10.0, num_rounds=3)
    assert plan.varying == ["sd_s"]
    assert plan.on_time == pytest.approx(0.5, abs=0.05)
    assert plan.round_s["fedavg"] == pytest.approx(12.5, abs=0.3)  # the expected maximum of 100 normal numbers is 2.51


def test_overhead_belongs_to_the_slot(tmp_path: Path) -> None:
    """Deadline 10 s, 3 s between rounds. Client 1 takes 15 and 22 s in turn. When it starts in tier 2 at 26 s, it
    arrives at 48 s, before that round closes at 49 s; it then starts in tier 3. Client 0 keeps rounds at 10 s."""
    settings = working(tmp_path, "0,1,3,4 1,1,5,10 1,2,5,17", overhead_s=3.0)
    assert simulate_on_time(draw_fleet(settings, 2), 10.0, settings).by_tier == {1: 1.0, 2: 1.0, 3: 1.0}


def test_round_lengths_of_a_trace(tmp_path: Path) -> None:
    """Client 1 takes 10 and 40 s in turn, so that FedAvg waits 25 s on average, although the first estimate is 10 s.
    LESSON with a deadline of 100 s is FedAvg: two updates in 25 s are 80 in 1000 s."""
    settings = working(tmp_path, "0,1,3,2 1,1,5,5 1,2,5,35")
    fleet = draw_fleet(settings, 2)
    assert make_plan(fleet, 7.0, settings=settings).round_s == {"lesson": 7.0, "fedavg": 25.0, "fedcs": 7.0}
    row = evaluate_deadline(fleet, 100.0, settings)
    assert (row.round_s, row.updates_per_1000s) == (25.0, 80.0)


def test_lost_update_misses_its_slot(tmp_path: Path) -> None:
    """Client 0, 7 s, leaves at 13 s in the middle of its second slot and comes back at 25 s: 1 slot made, 1 missed,
    then 47 made from 30 to 500 s. Client 1 takes 15 s: 25 slots of tier 2."""
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 0,0,13 0,25,inf")
    found = simulate_on_time(make_fleet([7.0, 15.0]), 10.0, Settings(presence=presence))
    assert found.by_tier == {1: 48 / 49, 2: 1.0}
    assert found.share == 73 / 74


def test_ended_slot_counts_even_without_its_update(tmp_path: Path) -> None:
    """The second local training takes 10,000 s, far longer than all rounds."""
    settings = working(tmp_path, "0,1,3,4 0,2,3,9997 1,1,3,12")
    assert simulate_on_time(draw_fleet(settings, 2), 10.0, settings).by_tier == {1: 1 / 2, 2: 1.0}


def test_all_updates_are_on_time_if_nothing_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.planning.on_time.make_loop", None)
    fleet = draw_fleet(Settings(), 20)
    plan = make_plan(fleet, 20.0, settings=Settings(shadowing_db=6.0, estimate="quantile"))
    assert {row.on_time for row in plan.tier_rows} == {row.on_time for row in plan.deadlines} == {1.0}
    assert (plan.on_time, plan.varying) == (1.0, [])
    assert make_plan(fleet, math.inf).on_time is None


def test_share_on_time_is_unknown_if_no_slot_has_ended() -> None:
    """A deadline of a millisecond makes tiers of thousands of rounds, more than are tried."""
    found = simulate_on_time(draw_fleet(RAYLEIGH, 5), 1e-3, RAYLEIGH)
    assert (found.share, found.by_tier) == (None, {})
    found = make_plan(draw_fleet(RAYLEIGH, 5), 1e-3, settings=RAYLEIGH).to_dict()
    assert {row["on_time"] for row in found["tiers"]} == {None}


def test_longer_deadlines_and_conservative_estimates_are_met_more_often() -> None:
    fleet = draw_fleet(RAYLEIGH, 20)
    shares = [simulate_on_time(fleet, deadline_s, RAYLEIGH).share or 0 for deadline_s in (5, 20, 160, math.inf)]
    assert all(later >= earlier - 0.02 for earlier, later in pairwise(shares))
    assert shares[0] < 0.95
    assert shares[-2:] == [1.0, 1.0]
    careful = Settings(fading="rayleigh", coherence_s=10.0, estimate="quantile")
    assert (simulate_on_time(fleet, 5.0, careful).share or 0) > shares[0] + 0.05


def test_shortest_sufficient_deadline_is_found() -> None:
    fleet = draw_fleet(RAYLEIGH, 20)
    tried: list[float] = []
    deadline_s = find_deadline_s(fleet, 0.97, propose_deadline_s(fleet), settings=RAYLEIGH, before_try=tried.append)
    shares = [evaluate_deadline(fleet, one_s, RAYLEIGH).on_time or 0 for one_s in tried]
    assert tried[0] == propose_deadline_s(fleet) < tried[-1] == deadline_s
    assert [share >= 0.97 for share in shares] == [False] * (len(tried) - 1) + [True]
    steps = np.array(tried[1:]) / np.array(tried[:-1])
    assert 1.05 < steps.min() <= steps.max() < 1.15
    assert all(float(f"{one_s:.2g}") == one_s for one_s in tried)


def test_share_that_no_deadline_reaches_is_an_error(tmp_path: Path) -> None:
    """Client 0 takes 7 s and 10,000 s in turn, far longer than the 35 s up to which deadlines are looked for."""
    settings = working(tmp_path, "0,1,3,4 0,2,3,9997")
    fleet = draw_fleet(settings, 1)
    with pytest.raises(InputError, match=r"^on_time must be at most 0.5, .* up to 35 s"):
        find_deadline_s(fleet, 0.9, 7.7, settings=settings)
    for share in (0.0, 1.01, math.nan):
        with pytest.raises(InputError, match="on_time must be > 0"):
            find_deadline_s(fleet, share, 5.0)
    assert find_deadline_s(fleet, 1.0, 11.0) == 11.0, "nothing varies"


def test_only_the_first_clients_of_a_large_fleet_are_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless some of them may leave: the last one loses its update at 1 s."""
    monkeypatch.setattr("lesson.planning.on_time.MAX_CLIENTS", 5)
    whole, few = draw_fleet(RAYLEIGH, 10), draw_fleet(RAYLEIGH, 5)
    assert simulate_on_time(whole, 20.0, RAYLEIGH) == simulate_on_time(few, 20.0, RAYLEIGH)
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 9,0,1")
    assert (simulate_on_time(whole, 60.0, Settings(presence=presence)).share or 0) < 1.0


def test_all_clients_of_a_file_are_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first clients are all of one kind."""
    monkeypatch.setattr("lesson.planning.on_time.MAX_CLIENTS", 4)
    (tmp_path / "fleet.csv").write_text("client,latency_s,sd_s,count\nsteady,10,,4\nunsteady,10,5,4\n")
    settings = Settings(latencies=str(tmp_path / "fleet.csv"))
    assert 0.6 < (simulate_on_time(draw_fleet(settings), 11.0, settings).share or 0.0) < 0.95


def test_first_clients_of_a_fleet_keep_the_promoted_one() -> None:
    fleet = make_fleet([15.0, 12.0, 30.0], ensure_first_tier=True).at_deadline(10.0)
    assert (fleet.first(2).promoted, fleet.first(1).promoted) == (fleet.promoted, None)
