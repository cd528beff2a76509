"""Local trainings that a trace marks as failed, and the server's time between rounds, by hand."""

from collections import Counter
from pathlib import Path

import pytest

from helpers.fleets import make_fleet
from lesson import FedAvg, FedBuff, InputError, Lesson, Settings, Simulation, simulate
from lesson.strategies import STRATEGIES, make_strategy

TRACE = """client,round,compute_s,upload_s,lost
0,1,4,1,0
0,2,2,0,1
1,1,7,1,0
1,2,7,1,0
"""


def settings_of(tmp_path: Path, text: str = TRACE, **changes: float) -> Settings:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return Settings(trace=str(path), **changes)


def test_a_failed_local_training_is_lost_and_its_client_starts_again(tmp_path: Path) -> None:
    records = list(simulate(FedAvg(), make_fleet([5.0, 8.0]), rounds=3, settings=settings_of(tmp_path)))
    # Round 1: both arrive, after 5 s and 8 s. Round 2: client 0 fails after 2 s, client 1 arrives after 8 s. Round 3:
    # the trace repeats.
    assert [record.merged.tolist() for record in records] == [[0, 1], [1], [0, 1]]
    assert [record.lost for record in records] == [0, 1, 0]
    assert [record.end_s for record in records] == [8.0, 16.0, 24.0]


def test_a_deadline_strategy_restarts_a_client_that_failed(tmp_path: Path) -> None:
    records = list(simulate(Lesson(10.0), make_fleet([5.0, 8.0]), rounds=3, settings=settings_of(tmp_path)))
    assert [record.started.tolist() for record in records] == [[0, 1]] * 3
    assert [record.merged.tolist() for record in records] == [[0, 1], [1], [0, 1]]


def test_only_0_and_1_mark_failures(tmp_path: Path) -> None:
    wrong = settings_of(tmp_path, TRACE.replace("2,0,1", "2,0,2"))
    with pytest.raises(InputError, match="line 3: lost must be 0 or 1, got 2"):
        list(simulate(FedAvg(), make_fleet([5.0, 8.0]), rounds=1, settings=wrong))


@pytest.mark.parametrize("varying", [False, True])
def test_rounds_open_after_the_overhead(tmp_path: Path, varying: bool) -> None:
    trace = "client,round,compute_s,upload_s\n0,1,4,1\n1,1,7,1\n"
    settings = settings_of(tmp_path, trace, overhead_s=3.0) if varying else Settings(overhead_s=3.0)
    fleet = make_fleet([5.0, 8.0])
    rounds = [(one.start_s, one.end_s) for one in simulate(FedAvg(), fleet, rounds=3, settings=settings)]
    assert rounds == [(0.0, 8.0), (11.0, 19.0), (22.0, 30.0)]
    # LESSON's rounds last τ from the moment at which they open. Client 1 is in tier 2 for τ = 6 s; its first update
    # arrives at 8 s, before round 2 opens at 9 s, and is due when that round closes.
    records = list(simulate(Lesson(6.0), fleet, rounds=3, settings=settings))
    assert [(one.start_s, one.end_s) for one in records] == [(0.0, 6.0), (9.0, 15.0), (18.0, 24.0)]
    assert [sorted(one.merged.tolist()) for one in records] == [[0], [0, 1], [0]]


def test_only_aggregations_have_overhead() -> None:
    """FedBuff aggregates every second arrival, at 10 s and 23 s; no time passes after the others."""
    records = simulate(FedBuff(2), make_fleet([5.0, 100.0]), rounds=4, settings=Settings(overhead_s=3.0))
    assert [(record.start_s, record.end_s, record.version) for record in records] == [
        (0.0, 5.0, 0),
        (5.0, 10.0, 1),
        (13.0, 18.0, 1),
        (18.0, 23.0, 2),
    ]


LATENCIES_S = [5.0, 12.0, 19.0, 22.0, 33.0, 41.0]
"""For a deadline of 20 s: three clients in tier 1, two in tier 2 and one in tier 3."""
COUNT_ARRIVALS = {"ca2fl", "fadas", "fedasync", "fedat", "fedbuff", "fedcompass", "malenia", "rennala"}
"""Strategies that aggregate after a number of arrivals, which depend on how long a round takes."""


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_overhead_makes_no_update_late(tmp_path: Path, name: str) -> None:
    """All clients take exactly as long as expected, with and without 5 s between rounds."""
    rows = (f"{client},1,{latency_s / 2},{latency_s / 2}" for client, latency_s in enumerate(LATENCIES_S))
    trace = "\n".join(["client,round,compute_s,upload_s", *rows, ""])
    options = {"tifl": {"credits": 2}}.get(name, {"late": "drop"} if name.startswith("lesson") else {})
    merged, reasons = [], []
    for overhead_s in (0.0, 5.0):
        settings = settings_of(tmp_path, trace, overhead_s=overhead_s)
        loop = Simulation(make_strategy(name, 20.0, options), make_fleet(LATENCIES_S), settings=settings)
        records = [record for _ in range(200) if (record := loop.step()) is not None]
        assert sum(record.misses or 0 for record in records) == 0
        merged.append(Counter(client for record in records for client in record.merged.tolist()))
        reasons.append(loop.stop_reason)
    assert reasons[0] == reasons[1]
    assert merged[0].keys() <= merged[1].keys() if name in COUNT_ARRIVALS else merged[0] == merged[1]


def test_overhead_does_not_change_whose_slot_begins() -> None:
    """One of the nine clients of tier 2 is drawn in every second round."""
    strategy, settings = Lesson(10.0, participation=1), Settings(overhead_s=3.0)
    records = simulate(strategy, make_fleet([5.0] + [15.0] * 9), rounds=8, settings=settings)
    assert [len(record.started) for record in records] == [2, 1] * 4


def test_a_round_that_closes_early_makes_no_update_late(tmp_path: Path) -> None:
    """By first estimates, both clients are in tier 1, so that rounds close at the last arrival. Client 1 turns out to
    take 35 s, while rounds of client 0 alone last 5 s."""
    slow = "".join(f"1,{update},17.5,17.5\n" for update in range(2, 20))
    settings = settings_of(tmp_path, f"client,round,compute_s,upload_s\n0,1,2.5,2.5\n1,1,7.5,7.5\n{slow}")
    strategy = Lesson(20.0, late="drop", participation=1)
    records = list(simulate(strategy, make_fleet([5.0, 15.0]), rounds=80, settings=settings))
    num_started, num_merged = sum(1 in one.started for one in records), sum(1 in one.merged for one in records)
    assert num_merged >= num_started - 2  # one is still training, and one took longer than expected
