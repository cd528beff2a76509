"""Clients that disconnect, by hand, and whole runs with faults."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import Scripted, disconnecting, make_fleet, steps, traced
from helpers.resuming import check_resumes
from helpers.small_tasks import tiny_task
from lesson import FedAvg, FedCS, Lesson, draw_fleet, make_loop, simulate
from lesson.clock.faults import Disconnections
from lesson.clock.loop import NOBODY
from lesson.clock.records import RoundRecord
from lesson.runs.execute import execute
from lesson.settings.sections import FaultSettings
from lesson.settings.settings import Settings
from lesson.strategies import Safa

NEVER = np.inf


def rounds_of(
    latencies: list[float], rounds: int, strategy: Any = None, settings: Settings | None = None, **script: Any
) -> list[RoundRecord]:
    loop = disconnecting(strategy or FedAvg(), make_fleet(latencies), Scripted(**script), settings=settings)
    return steps(loop, rounds)


def outline(record: RoundRecord) -> tuple[float, list[int], list[int], int | None]:
    return record.end_s, record.started.tolist(), sorted(record.merged.tolist()), record.lost


def test_client_disconnects_during_training_and_rejoins() -> None:
    """Client 1 computes for 10 s and disconnects after half of that, for 40 s: it is back at 45 s, in time for the
    third round. It has used 1 of its 2 J for computing and uploaded nothing."""
    records = rounds_of([10, 20, 30], 3, script={(1, 0): (0.5, 40.0)})
    assert [outline(record) for record in records] == [
        (30.0, [0, 1, 2], [0, 2], 1),
        (60.0, [0, 2], [0, 2], 0),
        (90.0, [0, 1, 2], [0, 1, 2], 0),
    ]
    assert [record.compute_j for record in records] == pytest.approx([1 + 3 + 1, 1 + 3, 1 + 2 + 3])
    assert [record.transmit_j for record in records] == pytest.approx([40, 40, 60])


def test_disconnection_is_noticed_after_the_delay() -> None:
    """Client 1 disconnects at 0 s, which the server notices at 36 s: FedAvg waits for that. It costs nothing. Back at
    20 s, it starts with the others."""
    records = rounds_of([10, 20, 30], 2, script={(1, 0): (0.0, 20.0)}, detection_delay_s=36.0)
    assert [outline(record) for record in records] == [(36.0, [0, 1, 2], [0, 2], 1), (66.0, [0, 1, 2], [0, 1, 2], 0)]
    assert records[0].compute_j == pytest.approx(4)


def test_deadline_does_not_wait_for_disconnected_clients() -> None:
    """τ = 20 s: client 0 is in tier 1, client 1 in tier 2. Client 0's second training starts at 20 s and computes 8 s;
    it disconnects at 24 s and is back at 47 s, for the round that opens at 60 s."""
    records = rounds_of([16, 36], 4, Lesson(20.0), script={(0, 1): (0.5, 23.0)})
    assert [outline(record) for record in records] == [
        (20.0, [0, 1], [0], 0),
        (40.0, [0], [1], 1),
        (60.0, [1], [], 0),
        (80.0, [0], [0, 1], 0),
    ]


def test_without_clients_the_next_round_opens_when_one_rejoins() -> None:
    records = rounds_of([10, 20], 2, script={(0, 0): (0.0, 70.0), (1, 0): (0.0, 50.0)})
    assert [outline(record) for record in records] == [(0.0, [0, 1], [], 2), (70.0, [1], [1], 0)]


@pytest.mark.parametrize(
    ("strategy", "latencies", "rounds", "reason"),
    [
        (Lesson(20.0), [10], 2, NOBODY),
        (FedCS(20.0), [10, 30, 40], 2 + 100, "the strategy started no client in 100 rounds"),  # nobody in tier 1
    ],
)
def test_run_ends_when_its_clients_have_left_for_good(
    strategy: Any, latencies: list[float], rounds: int, reason: str
) -> None:
    loop = disconnecting(strategy, make_fleet(latencies), Scripted({(0, 1): (0.5, NEVER)}))
    assert len(list(iter(lambda: loop.step(1e6), None))) == rounds
    assert loop.stop_reason == reason


@pytest.mark.parametrize(
    ("presence", "script", "delay_s", "starts", "lost"),
    [
        # Client 1 disconnects at 0.85 s for 2 s, noticed at 60.85 s; by then it has left, from 50 to 100 s. Rounds of
        # client 0 alone close when it arrives, every 16 s: the next one opens at 108 s.
        ("1,0,50 1,100,inf", {(1, 0): (0.1, 2.0)}, 60.0, [[0, 1], *[[0]] * 5, [0, 1]], [0, 0, 0, 1, 0, 0, 0]),
        # It leaves before it would disconnect for good.
        ("1,0,5 1,50,inf", {(1, 0): (0.9, NEVER)}, 0.0, [[0, 1], [0], [0], [0], [0, 1]], [1, 0, 0, 0, 0]),
    ],
)
def test_disconnections_with_a_presence_file(
    tmp_path: Path, presence: str, script: Any, delay_s: float, starts: list[list[int]], lost: list[int]
) -> None:
    settings = Settings(presence=traced(tmp_path / "presence.csv", f"client,from_s,to_s {presence}"))
    parts: dict[str, Any] = {"script": script, "detection_delay_s": delay_s}
    records = rounds_of([16, 17], len(starts), Lesson(20.0), settings, **parts)
    assert [record.started.tolist() for record in records] == starts
    assert [record.lost for record in records] == lost


def test_dropped_client_that_disconnected_for_good_stays_offline() -> None:
    """Client 2 disconnects for good at 0 s, unnoticed. SAFA drops its update and starts it again, in vain."""
    strategy = Safa(round_limit_s=20.0, lag_tolerance=3)
    records = rounds_of([10, 12, 14], 8, strategy, script={(2, 0): (0.0, NEVER)}, detection_delay_s=1000.0)
    assert sum(record.started.tolist().count(2) for record in records) > 1
    assert all(2 not in record.merged for record in records)


def test_disconnected_clients_free_a_shared_band() -> None:
    settings = Settings(num_clients=2, spectrum="equal")
    fleet = draw_fleet(settings, seed=3)
    (alone,) = simulate(FedAvg(), fleet, rounds=1, settings=settings, seed=3)
    loop = disconnecting(FedAvg(), fleet, Scripted({(0, 0): (0.5, 10.0)}), settings=settings, seed=3)
    (record,) = steps(loop, 1)
    assert (record.merged.tolist(), record.lost) == ([1], 1)
    assert record.end_s <= alone.end_s


def test_disconnections_are_drawn_for_each_client_and_training() -> None:
    settings = FaultSettings(disconnect_before=0.2, disconnect_during=0.3, offline_s=50.0, offline_forever=0.1)
    drawn, clients, index = Disconnections(settings, seed=5), np.arange(1000), np.full(1000, 7)
    moments, offline_s = drawn.moments(clients, index), drawn.offline_s(clients, index)
    assert np.count_nonzero(moments == 0) == pytest.approx(200, abs=45)
    assert np.count_nonzero((moments > 0) & (moments < 1)) == pytest.approx(0.3 * 800, abs=45)
    assert np.count_nonzero(np.isinf(offline_s)) == pytest.approx(100, abs=30)
    assert offline_s[np.isfinite(offline_s)].mean() == pytest.approx(50.0, rel=0.15)
    assert moments[[3, 500]].tolist() == drawn.moments(np.array([3, 500]), np.array([7, 7])).tolist()


PARTS: dict[str, Any] = {"task": tiny_task(), "num_threads": 1}


def test_run_with_faults_resumes_and_counts_them(tmp_path: Path) -> None:
    faults = {"disconnect_before": 0.1, "disconnect_during": 0.1, "offline_s": 60.0}
    guards = {"norm_limit": 1.2, "exclude_after_rejections": 2}
    run = {"eval_every_s": 100.0, "rounds": 15, "device": "cpu", "checkpoint_every_s": 1e-9}
    parts = {"num_clients": 8, "batch_size": 5, "split": "iid", "slowdown": 0.2}
    settings = Settings(faults=faults, guards=guards, run=run, **parts)
    check_resumes(settings, tmp_path, 7, **PARTS)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    rejected = [client for line in lines for client in line.get("rejections", {}).get("norm too large", [])]
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert summary["rejected"] == len(rejected) == summary["rejected_by"]["norm too large"]
    assert summary["excluded"]
    for name in ("misses", "retiered", "lost"):
        assert summary[name] == sum(line[name] for line in lines)


def test_run_whose_clients_have_all_left_ends_with_its_results(tmp_path: Path) -> None:
    settings = Settings(num_clients=6, disconnect_before=0.5, offline_forever=1.0, time_budget_s=5000.0, device="cpu")
    summary = execute(settings, tmp_path / "run", **PARTS)
    assert summary["ended_early"] == NOBODY
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_world_varies_only_with_faults_or_variation() -> None:
    settings = Settings(shadowing_db=6.0, path_loss="umi", download=True, num_clients=8)
    assert not make_loop(FedAvg(), draw_fleet(settings), settings=settings).world.varies
    assert make_loop(FedAvg(), make_fleet([1.0]), settings=Settings(disconnect_during=0.1)).world.varies
