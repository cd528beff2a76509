"""Clients that come and go: work that is lost, who starts again, and runs in which nobody is there."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fleets import fields, make_fleet, traced
from helpers.scripted import Scripted, ids
from helpers.strategies import everyone, make
from lesson import FedAvg, Lesson, Settings, Simulation, draw_fleet, simulate
from lesson.clock.records import RoundRecord
from lesson.clock.rejections import NOT_FINITE, Rejection
from lesson.strategies.base import AllOf, RoundPlan, ServerView, Updates
from lesson.strategies.fedcs_greedy import FedCSGreedy

HEADER = "client,from_s,to_s "


def run(tmp_path: Path, strategy: Any, latencies: list[float], text: str, rounds: int) -> list[RoundRecord]:
    settings = Settings(presence=traced(tmp_path / "presence.csv", HEADER + text))
    return list(simulate(strategy, make_fleet(latencies), rounds=rounds, settings=settings))


class Forgetful:
    """A model server that notes which versions it was told to forget."""

    def __init__(self) -> None:
        self.forgot: list[int] = []

    def merge(self, *_: Any) -> list[Any]:
        return []

    def forget(self, version: int) -> None:
        self.forgot.append(version)

    def signals(self, names: frozenset[str], version: int) -> dict[str, Any]:
        return {}


def test_an_update_is_lost_if_its_client_leaves_during_training(tmp_path: Path) -> None:
    """Rounds of 10 s; 0 takes 5 s, 1 takes 16 s, half of both for computing. 1 leaves at 12 s: it has computed its 8 s,
    2 J, and sent 4 of 8 s, half of 20 J. Without it everybody is in tier 1, and round 3 closes as 0 arrives, at 25 s.
    Then 1 is back and starts; it is merged at 45 s. Version 0, which it had at first, is let go of when it is lost."""
    text = HEADER + "1,0,12 1,25,inf"
    settings = Settings(presence=traced(tmp_path / "presence.csv", text))
    server = Forgetful()
    simulation = Simulation(Lesson(10.0), make_fleet([5.0, 16.0]), model_server=server, settings=settings)
    records = [simulation.step() for _ in range(5)]
    assert [record.end_s for record in records] == [10.0, 20.0, 25.0, 35.0, 45.0]  # type: ignore[union-attr]
    assert [record.started.tolist() for record in records] == [[0, 1], [0], [0], [0, 1], [0]]  # type: ignore[union-attr]
    assert [record.merged.tolist() for record in records] == [[0], [0], [0], [0], [0, 1]]  # type: ignore[union-attr]
    assert [record.lost for record in records] == [0, 1, 0, 0, 0]  # type: ignore[union-attr]
    assert [record.uploads for record in records] == [1, 1, 1, 1, 2]  # type: ignore[union-attr]
    assert [record.misses for record in records] == [0] * 5  # type: ignore[union-attr]
    assert [record.compute_j for record in records] == [1.0, 1 + 2.0, 1.0, 1.0, 1 + 2.0]  # type: ignore[union-attr]
    assert [record.transmit_j for record in records] == pytest.approx([10, 10 + 10, 10, 10, 10 + 20])  # type: ignore[union-attr]
    assert [record.bytes_down // 12_500 for record in records] == [2, 1, 1, 2, 1]  # type: ignore[union-attr]
    # In round 2 the last that had version 0, and version 1 with client 0's; then one a round, 3 with client 1.
    assert server.forgot == [0, 1, 2, 3, 4]
    assert simulation.fleet.latency_s.tolist() == [5.0, 16.0], "work that is lost teaches nothing"


@pytest.mark.parametrize(
    ("leaves_s", "joules"), [(3.0, (3 / 8 * 2, 0.0)), (8.0, (2.0, 0.0)), (10.0, (2.0, 2 / 8 * 20))]
)
def test_lost_updates_cost_the_energy_used_so_far(tmp_path: Path, leaves_s: float, joules: tuple[float, float]) -> None:
    """8 s of computing for 2 J, then 8 s of sending for 20 J."""
    (record,) = run(tmp_path, FedAvg(), [1.0, 16.0], f"1,0,{leaves_s}", rounds=1)
    assert (record.end_s, record.merged.tolist(), record.lost) == (leaves_s, [0], 1)
    assert (record.compute_j, record.transmit_j) == pytest.approx((1 + joules[0], 10 + joules[1]))


def test_an_update_that_arrives_before_its_client_leaves_is_merged(tmp_path: Path) -> None:
    """There until 16 s exactly, when it arrives; it does not start again."""
    records = run(tmp_path, Lesson(10.0), [5.0, 16.0], "1,0,16", rounds=4)
    assert [record.merged.tolist() for record in records] == [[0], [0, 1], [0], [0]]
    assert [record.started.tolist() for record in records] == [[0, 1], [0], [0], [0]]
    assert sum(record.lost or 0 for record in records) == 0


def test_an_update_that_waits_is_merged_while_its_client_is_away(tmp_path: Path) -> None:
    """Client 1 arrives at 16 s, is due at 20 s and away from 17 to 35 s: merged at 20 s, started at 40 s."""
    records = run(tmp_path, Lesson(10.0), [5.0, 16.0, 50.0], "1,0,17 1,35,inf", rounds=5)
    assert [record.end_s for record in records] == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert [record.merged.tolist() for record in records] == [[0], [0, 1], [0], [0], [0, 2]]
    assert [record.started.tolist() for record in records] == [[0, 1, 2], [0], [0], [0], [0, 1]]


def test_a_client_that_leaves_and_rejoins_in_one_round_starts_again(tmp_path: Path) -> None:
    """1 is lost at 2 s and back at 3 s; 0 as well, but was through."""
    records = run(tmp_path, FedAvg(), [1.0, 4.0, 9.0], "1,0,2 1,3,inf 0,0,2 0,3,inf", rounds=2)
    assert [(record.end_s, record.merged.tolist(), record.lost) for record in records] == [
        (9, [0, 2], 1),
        (18, [0, 1, 2], 0),
    ]


def test_the_clock_advances_to_the_next_join_if_no_client_is_available(tmp_path: Path) -> None:
    """Both are away from 20 to 100 s, in round 3. LESSON's grid begins anew at 100 s; time is not lost to anybody."""
    records = run(tmp_path, Lesson(10.0), [5.0, 16.0], "0,0,20 0,100,inf 1,0,20 1,105,inf", rounds=5)
    assert [(record.start_s, record.end_s) for record in records] == [
        (0, 10),
        (10, 20),
        (100, 105),
        (105, 115),
        (115, 125),
    ]
    assert [record.started.tolist() for record in records] == [[0, 1], [0], [0], [0, 1], [0]]
    assert [record.merged.tolist() for record in records] == [[0], [0, 1], [0], [0], [0, 1]]


def test_a_run_may_begin_without_clients(tmp_path: Path) -> None:
    records = run(tmp_path, FedAvg(), [5.0, 16.0], "0,30,inf 1,40,inf", rounds=2)
    assert [(record.start_s, record.end_s, record.merged.tolist()) for record in records] == [
        (30, 35, [0]),
        (35, 40, [0]),
    ]


@everyone
def test_a_run_ends_when_no_client_will_ever_join(kind: type[Any], tmp_path: Path) -> None:
    """Some leave in the middle of their work; the last at 130 s, after a while in which nobody was there."""
    text = HEADER + "0,0,31 1,0,52.5 2,0,33 3,20,40 0,100,130 2,101,120"
    settings = Settings(presence=traced(tmp_path / "presence.csv", text))
    simulation = Simulation(make(kind), make_fleet([3.0, 15.0, 25.0, 7.0]), settings=settings)
    records = []
    while not simulation.stop_reason and simulation.round < 500:
        if (record := simulation.step()) is not None:
            records.append(record)
    assert simulation.stop_reason == "no client is connected anymore"
    assert records[-1].end_s == pytest.approx(130.0, abs=10.0)
    assert any(record.start_s == 100 for record in records), "a round opens when the first client is back"
    assert sum(record.lost for record in records) > 0
    late = [record for record in records if record.end_s > 100]
    assert {int(client) for record in late for client in record.started} <= {0, 2}
    assert all(np.all(record.merged_arrived_s <= record.end_s * (1 + 1e-12)) for record in records)
    shorter = simulate(make(kind), make_fleet([3.0, 15.0, 25.0, 7.0]), until_s=60.0, settings=settings)
    assert max(record.end_s for record in shorter) <= 60


@everyone
def test_a_time_budget_is_not_passed_by_waiting(kind: type[Any], tmp_path: Path) -> None:
    text = HEADER + "0,0,30 1,0,30 2,0,30 0,1000,inf"
    settings = Settings(presence=traced(tmp_path / "presence.csv", text))
    simulation = Simulation(make(kind), make_fleet([3.0, 15.0, 25.0]), settings=settings)
    while not simulation.stop_reason:
        record = simulation.step(100.0)
        assert record is None or record.end_s <= 100.0
    assert simulation.stop_reason == "time limit reached"


@everyone
def test_constant_presence_of_all_clients_changes_nothing(kind: type[Any], tmp_path: Path) -> None:
    """Actual times equal the estimates, in round numbers: records are bit-identical, except the fields about misses."""
    settings = Settings(presence=traced(tmp_path / "presence.csv", HEADER + "0,0,inf 2,0,1e9"))
    fleet = make_fleet([3.0, 15.0, 25.0, 7.0, 7.0])
    plain = [fields(record) for record in simulate(make(kind), fleet, rounds=30)]
    varied = [fields(record) for record in simulate(make(kind), fleet, rounds=30, settings=settings)]
    surprises = ("misses", "retiered", "lost")
    for record, other in zip(plain, varied, strict=True):
        assert [record.pop(name) for name in surprises] == [None, None, None]
        assert [other.pop(name) for name in surprises] == [0, 0, 0]
        joules = [[one.pop("compute_j"), one.pop("transmit_j")] for one in (record, other)]
        assert joules[0] == pytest.approx(joules[1])
        assert record == other


intervals = st.lists(st.floats(0.1, 30), min_size=2, max_size=8).map(np.cumsum)


@given(times=st.lists(intervals, min_size=3, max_size=3), data=st.data())
def test_clients_that_are_away_do_not_train(times: list[np.ndarray], data: st.DataObject) -> None:
    """Only available clients start, an aggregated update was trained without a break, and a lost one was not."""
    kind = data.draw(st.sampled_from([FedAvg, Lesson]))
    rows = [(client, *pair) for client, when in enumerate(times) for pair in zip(when[::2], when[1::2], strict=False)]
    client, from_s, to_s = (np.array(column) for column in zip(*rows, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        text = " ".join(
            [HEADER.strip(), *(f"{who},{float(start_s)!r},{float(end_s)!r}" for who, start_s, end_s in rows)]
        )
        settings = Settings(presence=traced(Path(folder, "presence.csv"), text))
        simulation = Simulation(make(kind), make_fleet([3.0, 15.7, 25.1]), settings=settings)
    num_started = num_lost = num_merged = 0
    while not simulation.stop_reason:
        record = simulation.step()
        if record is None:
            break
        merged = zip(record.merged.tolist(), record.merged_started_s, record.merged_arrived_s, strict=True)
        for who, began_s, arrived_s in merged:
            assert np.any((client == who) & (from_s <= began_s) & (arrived_s <= to_s * (1 + 1e-12)))
        num_started, num_lost = num_started + len(record.started), num_lost + record.lost
        num_merged += len(record.merged)
    assert simulation.stop_reason == "no client is connected anymore"
    assert num_started == num_lost + num_merged
    assert num_lost <= len(rows)


def test_an_early_update_waits_for_its_slot_without_connected_clients(tmp_path: Path) -> None:
    """Estimated at 45 s, client 0 is in tier 3 of τ = 20 s; it takes 8 s, leaves at 10 s, and is merged at 60 s."""
    work = traced(tmp_path / "work.csv", "client,round,compute_s,upload_s 0,1,40,5 0,2,4,4")
    presence = traced(tmp_path / "presence.csv", HEADER + "0,0,70")
    settings = Settings(num_clients=1, trace=work, presence=presence)
    simulation = Simulation(Lesson(20.0), draw_fleet(settings), settings=settings)
    first = [simulation.step() for _ in range(3)][-1]
    assert first is not None
    assert (first.end_s, first.merged.tolist()) == (60.0, [0])
    # Now it is estimated at 45 s again and takes 8 s: there at 68 s, due at 120 s, and gone at 70 s.
    ends = [record for record in (simulation.step() for _ in range(4)) if record is not None]
    assert [(record.end_s, record.merged.tolist()) for record in ends] == [(80.0, []), (100.0, []), (120.0, [0])]
    assert simulation.stop_reason == "no client is connected anymore"


def test_a_client_that_leaves_frees_a_channel_used_in_turn(tmp_path: Path) -> None:
    """Client 0 begins to upload at 1 s and would need 30 s, but leaves at 3 s; client 1 then needs 40 s."""
    work = traced(tmp_path / "work.csv", "client,round,compute_s,upload_s 0,1,1,30 1,1,1.5,40")
    presence = traced(tmp_path / "presence.csv", HEADER + "0,0,3")
    settings = Settings(num_clients=2, trace=work, presence=presence)
    (record,) = simulate(FedCSGreedy(100.0), draw_fleet(settings), rounds=1, settings=settings)
    assert (record.started.tolist(), record.merged.tolist(), record.end_s) == ([0, 1], [1], 43.0)


class WaitsForTheSecond(Scripted):
    """Starts client 1 when it is idle, and nobody else."""

    def __init__(self) -> None:
        super().__init__(AllOf(ids(1)))

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        return RoundPlan(ids(1)[view.idle[ids(1)]], self.closes)


def test_a_client_that_joins_at_the_moment_of_a_checkpoint_is_seen_after_a_resume(tmp_path: Path) -> None:
    """Client 1 joins at 50 s. Until then nothing happens, so the clock moves there at the end of round 1."""
    settings = Settings(presence=traced(tmp_path / "presence.csv", HEADER + "1,50,inf"))
    before, after = (Simulation(WaitsForTheSecond(), make_fleet([5.0, 5.0]), settings=settings) for _ in range(2))
    before.step()
    assert before.now_s == 50.0
    after.restore(*before.state())
    record = after.step()
    assert record is not None
    assert (record.started.tolist(), record.end_s) == ([1], 55.0)


def test_an_excluded_client_does_not_rejoin_by_the_presence_file(tmp_path: Path) -> None:
    """Client 1 is excluded after its first update at 5 s, leaves at 20 s and would be back at 40 s."""

    class Rejecting(Forgetful):
        def merge(self, updates: Updates, *_: Any) -> list[Any]:
            return [Rejection(client, index, NOT_FINITE) for client, index in updates.keys if client == 1]

    presence = traced(tmp_path / "presence.csv", HEADER + "1,0,20 1,40,inf")
    settings = Settings(presence=presence, exclude_after_rejections=1)
    simulation = Simulation(FedAvg(), make_fleet([5.0, 5.0]), model_server=Rejecting(), settings=settings)
    started = [simulation.step().started.tolist() for _ in range(12)]  # type: ignore[union-attr]
    assert started == [[0, 1]] + [[0]] * 11
