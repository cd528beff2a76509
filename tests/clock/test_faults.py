"""Clients that drop out, uploads that do not fit: draws, rounds written out by hand, and what every strategy keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import Scripted, disconnecting, make_fleet, traced
from lesson import FedAvg, FedCS, InputError, Lesson, Simulation, draw_fleet, simulate
from lesson.clock.faults import CorruptedUploads, Disconnections
from lesson.clock.loop import NOBODY, RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.rejections import NOT_FINITE, Rejection
from lesson.core.arrays import BoolArray, FloatArray
from lesson.settings.faults import FaultSettings
from lesson.settings.settings import Settings
from lesson.strategies import FedBuff, Safa
from lesson.strategies.base import Merge, Updates

NEVER = np.inf


def rounds_of(latencies: list[float], rounds: int, strategy: Any = None, **options: Any) -> list[RoundRecord]:
    make_simulation = disconnecting if "disconnections" in options else Simulation
    simulation = make_simulation(strategy or FedAvg(), make_fleet(latencies), **options)
    records = [simulation.step() for _ in range(rounds)]
    assert all(record is not None for record in records)
    return [record for record in records if record is not None]


def told(record: RoundRecord) -> tuple[float, list[int], list[int], int | None]:
    return record.end_s, record.started.tolist(), sorted(record.merged.tolist()), record.lost


def test_a_client_disconnects_during_training_and_rejoins() -> None:
    """Client 1 computes for 10 s and is gone after half of that, for 40 s: back at 45 s, in time for the third round.
    It has spent 1 of its 2 J on computing and sent nothing."""
    records = rounds_of([10, 20, 30], 3, disconnections=Scripted({(1, 0): (0.5, 40.0)}))
    assert [told(record) for record in records] == [
        (30.0, [0, 1, 2], [0, 2], 1),
        (60.0, [0, 2], [0, 2], 0),
        (90.0, [0, 1, 2], [0, 1, 2], 0),
    ]
    assert [record.compute_j for record in records] == pytest.approx([1 + 3 + 1, 1 + 3, 1 + 2 + 3])
    assert [record.transmit_j for record in records] == pytest.approx([40, 40, 60])


def test_who_drops_out_before_work_is_noticed_late() -> None:
    """Client 1 is gone at 0 s, which the server finds out at 36 s: FedAvg waits for that. It has cost nothing. Having
    come back at 20 s, it starts with the others."""
    records = rounds_of([10, 20, 30], 2, disconnections=Scripted({(1, 0): (0.0, 20.0)}, detection_delay_s=36.0))
    assert [told(record) for record in records] == [(36.0, [0, 1, 2], [0, 2], 1), (66.0, [0, 1, 2], [0, 1, 2], 0)]
    assert records[0].compute_j == pytest.approx(4)


def test_a_deadline_does_not_wait_for_disconnected_clients() -> None:
    """τ = 20 s: client 0 is in tier 1, client 1 in tier 2. Client 0 drops out of its second work, which began at 20 s
    and computes 8 s, at 24 s, and is back at 47 s: the round that opens at 60 s has it again."""
    records = rounds_of([16, 36], 4, Lesson(20.0), disconnections=Scripted({(0, 1): (0.5, 23.0)}))
    assert [told(record) for record in records] == [
        (20.0, [0, 1], [0], 0),
        (40.0, [0], [1], 1),
        (60.0, [1], [], 0),
        (80.0, [0], [0, 1], 0),
    ]


def test_if_all_clients_are_offline_the_next_round_opens_when_one_rejoins() -> None:
    records = rounds_of([10, 20], 2, disconnections=Scripted({(0, 0): (0.0, 70.0), (1, 0): (0.0, 50.0)}))
    assert [told(record) for record in records] == [(0.0, [0, 1], [], 2), (70.0, [1], [1], 0)]


def test_a_run_whose_clients_are_all_gone_ends() -> None:
    script = Scripted({(0, 1): (0.5, NEVER), (1, 1): (0.0, NEVER)})
    simulation = disconnecting(Lesson(20.0), make_fleet([10, 20]), script)
    records = list(iter(lambda: simulation.step(1e6), None))
    assert [sorted(record.merged.tolist()) for record in records] == [[0, 1], []]
    assert simulation.stop_reason == NOBODY


def test_a_run_ends_if_the_strategy_has_no_clients_left() -> None:
    """FedCS has only client 0 in tier 1. It disconnects for good in its second local training: no client can start."""
    simulation = disconnecting(FedCS(20.0), make_fleet([10, 30, 40]), Scripted({(0, 1): (0.5, NEVER)}))
    records = []
    while not simulation.stop_reason:
        records.append(simulation.step(1e6))
    assert simulation.stop_reason == "the strategy started no client in 100 rounds"
    assert len(records) == 2 + 100, "it starts in the first two rounds"
    assert records[-1] is not None
    assert records[-1].note == simulation.stop_reason


def beside_a_file(
    tmp_path: Path, rows: str, disconnections: Scripted, rounds: int
) -> tuple[RoundLoop, list[RoundRecord]]:
    """Rounds of two clients in tier 1, of which the second is there as a file says."""
    settings = Settings(presence=traced(tmp_path / "presence.csv", f"client,from_s,to_s {rows}"))
    simulation = disconnecting(Lesson(20.0), make_fleet([16, 17]), disconnections, settings=settings)
    records = []
    for _ in range(rounds):
        record = simulation.step()
        assert record is not None
        records.append(record)
    return simulation, records


def test_a_client_that_left_by_the_presence_file_does_not_rejoin_after_a_disconnection(tmp_path: Path) -> None:
    """Client 1 drops out at 0.85 s for 2 s, which is noticed at 60.85 s; it has left at 50 s until 100 s meanwhile. The
    rounds that client 0 is alone in close when it lands, every 16 s: the next one opens at 108 s."""
    disconnections = Scripted({(1, 0): (0.1, 2.0)}, detection_delay_s=60.0)
    _, records = beside_a_file(tmp_path, "1,0,50 1,100,inf", disconnections, 7)
    assert [record.started.tolist() for record in records] == [[0, 1], [0], [0], [0], [0], [0], [0, 1]]
    assert [record.lost for record in records] == [0, 0, 0, 1, 0, 0, 0]


def test_a_client_that_leaves_by_the_presence_file_before_it_would_disconnect_rejoins_by_the_file(
    tmp_path: Path,
) -> None:
    _, records = beside_a_file(tmp_path, "1,0,5 1,50,inf", Scripted({(1, 0): (0.9, NEVER)}), 5)
    assert [record.started.tolist() for record in records] == [[0, 1], [0], [0], [0], [0, 1]]


def test_a_client_that_disconnected_for_good_stays_offline_after_a_drop() -> None:
    """Client 2 disconnects for good at 0 s, unnoticed. SAFA drops its update and starts it again: lost, too."""
    disconnections = Scripted({(2, 0): (0.0, NEVER)}, detection_delay_s=1000.0)
    records = rounds_of([10, 12, 14], 8, Safa(round_limit_s=20.0, lag_tolerance=3), disconnections=disconnections)
    assert sum(record.started.tolist().count(2) for record in records) > 1
    assert all(2 not in record.merged for record in records)


def test_disconnected_clients_leave_a_shared_band_to_the_others() -> None:
    """Two clients with 5 s of computing share a band: alone on it, client 1 sends as if nobody else were there."""
    settings = Settings(num_clients=2, spectrum="equal")
    fleet = draw_fleet(settings, seed=3)
    (alone,) = simulate(FedAvg(), fleet, rounds=1, settings=settings, seed=3)
    clock = disconnecting(FedAvg(), fleet, Scripted({(0, 0): (0.5, 10.0)}), settings=settings, seed=3)
    record = clock.step()
    assert record is not None
    assert (record.merged.tolist(), record.lost) == ([1], 1)
    assert record.end_s <= alone.end_s


class RejectingServer:
    """A model server that rejects the updates of some clients and keeps track of the versions it holds."""

    def __init__(self, *clients: int) -> None:
        self.clients, self.versions = clients, {0}

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> list[Rejection]:
        rejected = [Rejection(client, index, NOT_FINITE) for client, index in updates.keys if client in self.clients]
        if len(rejected) < len(updates):
            self.versions.add(version + 1)
        return rejected

    def forget(self, version: int) -> None:
        self.versions.remove(version)

    def signals(self, names: frozenset[str], version: int) -> dict[str, Any]:
        return {}


def test_rejected_updates_are_recorded_with_client_and_reason() -> None:
    """A rejected update counts as an upload and costs energy; its client starts again."""
    records = rounds_of([10, 20, 30], 2, model_server=RejectingServer(2))
    assert [record.rejections for record in records] == [(Rejection(2, 0, NOT_FINITE),), (Rejection(2, 1, NOT_FINITE),)]
    assert [(record.uploads, record.merged.tolist()) for record in records] == [(3, [0, 1]), (3, [0, 1])]
    assert [record.compute_j for record in records] == [6, 6]
    assert records[0].bytes_up == 3 * 12500


def test_a_client_rejected_too_often_in_a_row_is_excluded() -> None:
    settings = Settings(exclude_after_rejections=2)
    records = rounds_of([10, 20, 30], 4, model_server=RejectingServer(1), settings=settings)
    assert [record.started.tolist() for record in records] == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2]]
    assert [record.note for record in records] == [
        "",
        "excluded client 1 after 2 consecutive rejected updates: not finite",
        "",
        "",
    ]
    never = Settings(exclude_after_rejections=0)
    kept = rounds_of([10, 20, 30], 9, model_server=RejectingServer(1), settings=never)
    assert all(len(record.started) == 3 for record in kept)


def test_a_run_continues_after_an_exclusion() -> None:
    """FedAvg has nothing in flight at the end of a round, yet it starts clients in every one."""
    settings = Settings(exclude_after_rejections=2)
    records = rounds_of([10, 20, 30], 150, model_server=RejectingServer(1), settings=settings)
    assert records[-1].started.tolist() == [0, 2]


def test_work_of_an_excluded_client_is_dropped() -> None:
    """Latencies of 10 and 25 s, buffers of two. The buffer is full at 20 s with two of client 0's, at 30 s with client
    1's of 25 s, which is rejected, and again at 50 s with client 1's of 50 s: client 1, at work again or not, is
    excluded, and nothing of it is waited for or kept. Of the versions only the newest and those in use are left."""
    server = RejectingServer(1)
    simulation = Simulation(
        FedBuff(buffer_size=2, concurrency=2),
        make_fleet([10, 25]),
        model_server=server,
        settings=Settings(exclude_after_rejections=2),
    )
    records = [simulation.step() for _ in range(12)]
    kept = [record for record in records if record is not None]
    excluded_at = next(place for place, record in enumerate(kept) if record.note.startswith("excluded client 1"))
    assert kept[excluded_at].note == "excluded client 1 after 2 consecutive rejected updates: not finite"
    assert sum(record.rejected for record in kept) == 2
    assert all(1 not in record.merged for record in kept)
    assert all(1 not in record.started for record in kept[excluded_at + 1 :])
    assert len(server.versions) <= 2
    assert kept[-1].version == sum(len(record.merged) > 0 for record in kept)


def test_a_run_whose_clients_are_all_excluded_ends() -> None:
    server, settings = RejectingServer(0, 1), Settings(exclude_after_rejections=3)
    simulation = Simulation(Lesson(20.0), make_fleet([10, 15]), model_server=server, settings=settings)
    records = list(iter(lambda: simulation.step(1e6), None))
    assert len(records) == 3
    assert simulation.stop_reason == f"{NOBODY}; 2 of 2 clients were excluded"


def test_draws_are_each_clients_own() -> None:
    settings = FaultSettings(disconnect_before=0.2, disconnect_during=0.3, corrupting_clients=0.3, flipped=0.5, nan=0.1)
    disconnections, wrong = Disconnections.of(settings, seed=5), CorruptedUploads.of(settings, 1000, seed=5)
    assert disconnections is not None
    assert wrong is not None
    clients, index = np.arange(1000), np.full(1000, 7)
    moments = disconnections.moments(clients, index)
    assert np.count_nonzero(moments == 0) == pytest.approx(200, abs=45)
    assert np.count_nonzero((moments > 0) & (moments < 1)) == pytest.approx(0.3 * 800, abs=45)
    assert moments[[3, 500]].tolist() == disconnections.moments(np.array([3, 500]), np.array([7, 7])).tolist()
    assert wrong.is_corrupting.sum() == 300
    factor = wrong.factor(clients, index)
    assert set(factor[~wrong.is_corrupting]) == {1.0}
    assert np.count_nonzero(factor == -1) == pytest.approx(150, abs=30)
    assert np.count_nonzero(np.isnan(wrong.added_value(clients, index))) == pytest.approx(30, abs=18)


def test_an_upload_can_have_several_faults() -> None:
    both = CorruptedUploads(FaultSettings(scaled=1.0, scale=3.0, flipped=1.0, nan=1.0, infinity=1.0), 1, seed=0)
    one = np.array([0])
    assert both.factor(one, one).tolist() == [-3]
    assert np.isnan(both.added_value(one, one)).all()
    assert both.place(np.arange(1), one, 10).tolist()[0] in range(10)
    assert not both.is_intact(0, 0)
    assert CorruptedUploads(FaultSettings(corrupting_clients=0.0, nan=1.0), 1, seed=0).is_intact(0, 0)


def test_disabled_faults_leave_no_trace() -> None:
    assert Disconnections.of(FaultSettings(), 0) is None
    assert CorruptedUploads.of(FaultSettings(), 10, 0) is None
    assert CorruptedUploads.of(FaultSettings(corrupting_clients=0.0, flipped=1.0), 10, 0) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"disconnect_before": 1.1}, "disconnect_before must be <= 1, got 1.1"),
        ({"disconnect_during": -0.1}, "disconnect_during must be >= 0, got -0.1"),
        ({"offline_s": 0.0}, "offline_s must be >= 1, got 0.0"),
        ({"offline_s": 1e10}, "offline_s must be at most 1e+09, or inf for never, got 10000000000.0"),
        ({"detection_delay_s": 1e10}, "detection_delay_s must be <= 1000000000, got 10000000000.0"),
        ({"detection_delay_s": float("inf")}, "detection_delay_s must be a finite number, got inf"),
        ({"nan": "often"}, "nan must be a number, got 'often'"),
        ({"scale": 0.0}, "scale must be > 0, got 0.0"),
        ({"dropout": 0.1}, "unknown setting 'dropout'"),
    ],
)
def test_impossible_faults(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as rejected:
        FaultSettings(**settings)
    assert str(rejected.value).startswith(f"[faults] {message}")


def test_settings_without_effect_are_reported() -> None:
    told = FaultSettings(offline_s=3.0, scale=2.0, corrupting_clients=0.5).without_effect(8)
    assert told == [
        "faults.offline_s = 3.0 has no effect unless disconnect_before or disconnect_during is > 0",
        "faults.corrupting_clients = 0.5 has no effect unless uploads or labels are corrupted, as with flipped > 0",
        "faults.scale = 2.0 has no effect unless scaled is > 0",
    ]
    assert FaultSettings(disconnect_before=0.1, offline_s=3.0, corrupting_clients=0.5, nan=0.1).without_effect(8) == []
    assert FaultSettings(corrupting_clients=0.5, flipped_labels=0.1).without_effect(8) == []
    assert FaultSettings(corrupting_clients=0.01, nan=1.0).without_effect(8) == [
        "faults.corrupting_clients = 0.01 of 8 clients rounds to 0 clients"
    ]


def test_corrupting_shares_of_no_clients_and_of_all_clients() -> None:
    def wrong(share: float) -> BoolArray:
        return CorruptedUploads(FaultSettings(corrupting_clients=share, nan=1.0), 7, seed=1).is_corrupting

    assert [int(wrong(share).sum()) for share in (0.0, 0.1, 0.5, 1.0)] == [0, 1, 4, 7]
    assert np.all(wrong(0.5) <= wrong(1.0))
