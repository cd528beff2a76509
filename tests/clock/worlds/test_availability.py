"""Clients that join and leave according to a presence file."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fleets import fields, make_fleet, resume, steps, traced
from helpers.scripted import FakeServer, Scripted, Served, ids
from lesson import FedAvg, Lesson, Settings, draw_fleet, make_loop, simulate
from lesson.strategies import TiFL
from lesson.strategies.base import AllOf, Arrivals, Merge, RoundPlan, ServerView

HEADER = "client,from_s,to_s "


def present(tmp_path: Path, text: str, **changes: Any) -> Settings:
    return Settings(presence=traced(tmp_path / "presence.csv", HEADER + text), **changes)


def test_update_is_lost_if_its_client_leaves_during_training(tmp_path: Path) -> None:
    """Rounds of 10 s; 0 takes 5 s, 1 takes 16 s, half of both for computing. 1 leaves at 12 s: it has computed for 8 s,
    2 J, and uploaded for 4 of 8 s, half of 20 J. Without it, everybody is in tier 1, and round 3 closes when 0 arrives,
    at 25 s. Then 1 is back and starts; it is aggregated at 45 s."""
    server, settings = FakeServer(), present(tmp_path, "1,0,12 1,25,inf")
    loop = Served(make_loop(Lesson(10.0), make_fleet([5.0, 16.0]), settings=settings), server)
    records = steps(loop, 5)
    assert [record.end_s for record in records] == [10.0, 20.0, 25.0, 35.0, 45.0]
    assert [record.started.tolist() for record in records] == [[0, 1], [0], [0], [0, 1], [0]]
    assert [record.merged.tolist() for record in records] == [[0], [0], [0], [0], [0, 1]]
    assert [record.lost for record in records] == [0, 1, 0, 0, 0]
    assert [(record.uploads, record.misses) for record in records] == [(1, 0)] * 4 + [(2, 0)]
    assert [record.compute_j for record in records] == [1.0, 1 + 2.0, 1.0, 1.0, 1 + 2.0]
    assert [record.transmit_j for record in records] == pytest.approx([10, 10 + 10, 10, 10, 10 + 20])
    assert [record.bytes_down // 12_500 for record in records] == [2, 1, 1, 2, 1]
    assert server.versions == {5}
    assert loop.fleet.latency_s.tolist() == [5.0, 16.0], "a lost update does not change the estimate"


@pytest.mark.parametrize(
    ("strategy", "latencies", "presence", "rounds"),
    [
        # Client 1 arrives at the moment at which it leaves.
        (Lesson(10.0), [5.0, 16.0], "1,0,16", [(0, 10, [0, 1], [0]), (10, 20, [0], [0, 1]), (20, 25, [0], [0])]),
        # Client 1 arrives at 16 s, is away from 17 to 35 s, and aggregated at 20 s.
        (
            Lesson(10.0),
            [5.0, 16.0, 50.0],
            "1,0,17 1,35,inf",
            [
                (0, 10, [0, 1, 2], [0]),
                (10, 20, [0], [0, 1]),
                (20, 30, [0], [0]),
                (30, 40, [0], [0]),
                (40, 50, [0, 1], [0, 2]),
            ],
        ),
        # Both leave and rejoin in round 1; only client 1's update is lost.
        (
            FedAvg(),
            [1.0, 4.0, 9.0],
            "1,0,2 1,3,inf 0,0,2 0,3,inf",
            [(0, 9, [0, 1, 2], [0, 2]), (9, 18, [0, 1, 2], [0, 1, 2])],
        ),
        # Nobody is there from 20 to 100 s; LESSON's rounds then start at 100 s.
        (
            Lesson(10.0),
            [5.0, 16.0],
            "0,0,20 0,100,inf 1,0,20 1,105,inf",
            [
                (0, 10, [0, 1], [0]),
                (10, 20, [0], [0, 1]),
                (100, 105, [0], [0]),
                (105, 115, [0, 1], [0]),
                (115, 125, [0], [0, 1]),
            ],
        ),
        (FedAvg(), [5.0, 16.0], "0,30,inf 1,40,inf", [(30, 35, [0], [0]), (35, 40, [0], [0])]),
    ],
    ids=["arrives in time", "waits", "rejoins", "nobody", "begins without clients"],
)
def test_rounds_by_hand(
    tmp_path: Path, strategy: Any, latencies: list[float], presence: str, rounds: list[tuple[Any, ...]]
) -> None:
    settings = present(tmp_path, presence)
    records = simulate(strategy, make_fleet(latencies), rounds=len(rounds), settings=settings)
    assert [(one.start_s, one.end_s, one.started.tolist(), one.merged.tolist()) for one in records] == rounds


@pytest.mark.parametrize("strategy", [FedAvg(), Lesson(10.0)], ids=["fedavg", "lesson"])
@pytest.mark.parametrize(
    ("until_s", "last", "reason"),
    [(np.inf, "0,100,130 2,101,120", "no client is connected anymore"), (100.0, "0,1000,inf", "time limit reached")],
)
def test_end_of_a_run_without_clients(tmp_path: Path, strategy: Any, until_s: float, last: str, reason: str) -> None:
    settings = present(tmp_path, f"0,0,31 1,0,52.5 2,0,33 3,20,40 {last}")
    loop = make_loop(strategy, make_fleet([3.0, 15.0, 25.0, 7.0]), settings=settings)
    records = list(iter(lambda: loop.step(until_s), None))
    assert loop.stop_reason == reason
    assert records[-1].end_s <= min(until_s, 140.0)
    assert sum(record.lost or 0 for record in records) > 0
    assert until_s < np.inf or any(record.start_s == 100 for record in records), "when the first client is back"


def test_waiting_for_clients_does_not_exceed_the_time_budget(tmp_path: Path) -> None:
    """All credits of TiFL are used up at 8 + 5 s; somebody leaves at 1000 s."""
    settings = present(tmp_path, "0,0,1000")
    for until_s, reason in ((100.0, "no client is training and none can start"), (np.inf, "")):
        loop = make_loop(TiFL(num_tiers=2, credits=1), make_fleet([8.0, 5.0]), settings=settings)
        for _ in range(3):
            loop.step(until_s)
        assert (loop.stop_reason, loop.now_s) == (reason, 13.0 if reason else 1000.0)


@pytest.mark.parametrize(
    ("last", "reason"), [("0,1000,inf", "time limit reached"), ("", "no client is connected anymore")]
)
def test_run_with_updates_at_the_server_ends_without_clients(tmp_path: Path, last: str, reason: str) -> None:
    """Client 0 arrives at 3 s, is not aggregated, and leaves during its second training."""
    plans = Arrivals(1), RoundPlan(ids(0), Arrivals(1)), RoundPlan(ids(), Arrivals(1))
    strategy = Scripted(*plans, merge=lambda _: Merge(ids(), np.empty(0)))
    loop = make_loop(strategy, make_fleet([3.0]), settings=present(tmp_path, f"0,0,4 {last}"))
    for _ in range(4):
        loop.step(100.0)
    assert loop.stop_reason == reason
    assert len(loop.ledger.at_server) == 1


def test_presence_of_all_clients_changes_nothing(tmp_path: Path) -> None:
    """But for the fields about misses, tiers and losses, which are recorded only if times vary."""
    fleet, settings = make_fleet([3.0, 15.0, 25.0, 7.0, 7.0]), present(tmp_path, "0,0,inf 2,0,1e9")
    plain, varied = (simulate(Lesson(10.0), fleet, rounds=30, settings=one) for one in (None, settings))
    for record, other in zip(map(fields, plain), map(fields, varied), strict=True):
        assert [record.pop(name) for name in ("misses", "retiered", "lost")] == [None] * 3
        assert [other.pop(name) for name in ("misses", "retiered", "lost")] == [0] * 3
        joules = [[one.pop("compute_j"), one.pop("transmit_j")] for one in (record, other)]
        assert joules[0] == pytest.approx(joules[1])
        assert record == other


intervals = st.lists(st.floats(0.1, 30), min_size=2, max_size=8).map(np.cumsum)


@given(times=st.lists(intervals, min_size=3, max_size=3), strategy=st.sampled_from([FedAvg(), Lesson(10.0)]))
def test_absent_clients_do_not_train(times: list[np.ndarray], strategy: Any) -> None:
    """An aggregated update was trained without a break, and every other one is lost."""
    rows = [(client, *pair) for client, when in enumerate(times) for pair in zip(when[::2], when[1::2], strict=False)]
    client, from_s, to_s = (np.array(column) for column in zip(*rows, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        text = " ".join(f"{who},{float(start_s)!r},{float(end_s)!r}" for who, start_s, end_s in rows)
        loop = make_loop(strategy, make_fleet([3.0, 15.7, 25.1]), settings=present(Path(folder), text))
    num_started = num_lost = num_merged = 0
    for record in iter(loop.step, None):
        merged = zip(record.merged.tolist(), record.merged_started_s, record.merged_arrived_s, strict=True)
        for who, began_s, arrived_s in merged:
            assert np.any((client == who) & (from_s <= began_s) & (arrived_s <= to_s * (1 + 1e-12)))
        num_started, num_lost = num_started + len(record.started), num_lost + record.lost
        num_merged += len(record.merged)
    assert loop.stop_reason == "no client is connected anymore"
    assert num_started == num_lost + num_merged
    assert num_lost <= len(rows)


def test_early_update_waits_for_its_slot_without_clients(tmp_path: Path) -> None:
    """Estimated at 45 s, client 0 is in tier 3 of τ = 20 s. Its first update takes as long, its second one 8 s: it
    arrives at 68 s, before the client leaves at 70 s, and is due at 120 s."""
    work = traced(tmp_path / "work.csv", "client,round,compute_s,upload_s 0,1,40,5 0,2,4,4")
    settings = present(tmp_path, "0,0,70", num_clients=1, trace=work)
    loop = make_loop(Lesson(20.0), draw_fleet(settings), settings=settings)
    records = list(iter(loop.step, None))
    assert [(one.end_s, one.merged.tolist()) for one in records[2:]] == [(60, [0]), (80, []), (100, []), (120, [0])]
    assert loop.stop_reason == "no client is connected anymore"


def test_client_that_leaves_frees_a_channel_used_in_turn(tmp_path: Path) -> None:
    """Client 0 begins to upload at 1 s and would need 30 s, but leaves at 3 s; client 1 then needs 40 s."""
    work = traced(tmp_path / "work.csv", "client,round,compute_s,upload_s 0,1,1,30 1,1,1.5,40")
    settings = present(tmp_path, "0,0,3", num_clients=2, trace=work)
    plan = RoundPlan(ids(0, 1), AllOf(ids(0, 1)), uploads="in-turn")
    (record,) = simulate(Scripted(plan), draw_fleet(settings), rounds=1, settings=settings)
    assert (record.merged.tolist(), record.end_s) == ([1], 43.0)


class WaitsForTheSecond(Scripted):
    """Starts client 1 when it is idle, and nobody else."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        return RoundPlan(ids(1)[view.idle[ids(1)]], AllOf(ids(1)))


def test_client_that_joins_at_a_checkpoint_starts_after_a_resume(tmp_path: Path) -> None:
    """Client 1 joins at 50 s. Until then nothing happens, so the clock moves there at the end of round 1."""
    settings = present(tmp_path, "1,50,inf")
    before, after = (make_loop(WaitsForTheSecond(), make_fleet([5.0, 5.0]), settings=settings) for _ in range(2))
    before.step()
    assert before.now_s == 50.0
    (record,) = steps(resume(before, after), 1)
    assert (record.started.tolist(), record.end_s) == ([1], 55.0)


def test_excluded_client_does_not_rejoin(tmp_path: Path) -> None:
    """Client 1 is excluded after its first update at 5 s, leaves at 20 s and would be back at 40 s."""
    settings = present(tmp_path, "1,0,20 1,40,inf", exclude_after_rejections=1)
    loop = Served(make_loop(FedAvg(), make_fleet([5.0, 5.0]), settings=settings), FakeServer(1))
    assert [record.started.tolist() for record in steps(loop, 12)] == [[0, 1]] + [[0]] * 11
