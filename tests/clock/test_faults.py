"""Clients that drop out, uploads that do not fit: draws, rounds written out by hand, and what every strategy keeps."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import fields, make_fleet, traced
from helpers.strategies import Watched, everyone, make
from lesson import FedAvg, FedCS, InputError, Lesson, Simulation, draw_fleet, simulate
from lesson.clock.loop import NOBODY
from lesson.clock.records import RoundRecord
from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.settings.faults import CorruptedUploads, FaultSettings, Shapes, faults_of
from lesson.settings.guards import (
    CAME_BEFORE,
    NOT_FINITE,
    WRONG_ARRAYS,
    WRONG_SHAPE,
    GuardSettings,
    InvalidUpdateError,
    Rejection,
    RejectionLedger,
    check_shapes,
)
from lesson.settings.scenario import Scenario
from lesson.strategies import FedAT, FedBuff, Safa, TiFL
from lesson.strategies.base import Merge, Updates

NEVER = np.inf
TROUBLE = FaultSettings(
    dropout_before=0.1, dropout_during=0.1, away_s=40.0, notice_s=3.0, wrong_clients=0.5, wrong_shape=0.2, replayed=0.2
)


class Scripted:
    """Disconnections as written down: after which part of a piece of work, and for how long."""

    def __init__(self, script: dict[tuple[int, int], tuple[float, float]], notice_s: float = 0.0) -> None:
        self.script, self.notice_s = script, notice_s

    def moments(self, clients: IntArray, index: IntArray) -> FloatArray:
        return self._column(clients, index, 0, NEVER)

    def away_s(self, clients: IntArray, index: IntArray) -> FloatArray:
        return self._column(clients, index, 1, 0.0)

    def _column(self, clients: IntArray, index: IntArray, column: int, otherwise: float) -> FloatArray:
        keys = zip(clients.tolist(), index.tolist(), strict=True)
        return np.array([self.script[key][column] if key in self.script else otherwise for key in keys])


class Broken(CorruptedUploads):
    """Uploads with these faults, always, of these clients."""

    def __init__(self, *clients: int, **faults: float) -> None:
        super().__init__(FaultSettings(**faults), 4, seed=0)
        self.is_wrong = np.isin(np.arange(4), clients)


def rounds_of(latencies: list[float], rounds: int, strategy: Any = None, **options: Any) -> list[RoundRecord]:
    simulation = Simulation(strategy or FedAvg(), make_fleet(latencies), **options)
    records = [simulation.step() for _ in range(rounds)]
    assert all(record is not None for record in records)
    return [record for record in records if record is not None]


def told(record: RoundRecord) -> tuple[float, list[int], list[int], int | None]:
    return record.end_s, record.started.tolist(), sorted(record.merged.tolist()), record.lost


def test_a_client_drops_out_in_the_middle_and_comes_back() -> None:
    """Client 1 computes for 10 s and is gone after half of that, for 40 s: back at 45 s, in time for the third round.
    It has spent 1 of its 2 J on computing and sent nothing."""
    records = rounds_of([10, 20, 30], 3, dropouts=Scripted({(1, 0): (0.5, 40.0)}))
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
    records = rounds_of([10, 20, 30], 2, dropouts=Scripted({(1, 0): (0.0, 20.0)}, notice_s=36.0))
    assert [told(record) for record in records] == [(36.0, [0, 1, 2], [0, 2], 1), (66.0, [0, 1, 2], [0, 1, 2], 0)]
    assert records[0].compute_j == pytest.approx(4)


def test_a_deadline_does_not_wait_for_who_dropped_out() -> None:
    """τ = 20 s: client 0 is in tier 1, client 1 in tier 2. Client 0 drops out of its second work, which began at 20 s
    and computes 8 s, at 24 s, and is back at 47 s: the round that opens at 60 s has it again."""
    records = rounds_of([16, 36], 4, Lesson(20.0), dropouts=Scripted({(0, 1): (0.5, 23.0)}))
    assert [told(record) for record in records] == [
        (20.0, [0, 1], [0], 0),
        (40.0, [0], [1], 1),
        (60.0, [1], [], 0),
        (80.0, [0], [0, 1], 0),
    ]


def test_with_everybody_away_the_next_round_begins_when_somebody_is_back() -> None:
    records = rounds_of([10, 20], 2, dropouts=Scripted({(0, 0): (0.0, 70.0), (1, 0): (0.0, 50.0)}))
    assert [told(record) for record in records] == [(0.0, [0, 1], [], 2), (70.0, [1], [1], 0)]


def test_a_run_whose_clients_are_all_gone_ends() -> None:
    script = Scripted({(0, 1): (0.5, NEVER), (1, 1): (0.0, NEVER)})
    simulation = Simulation(Lesson(20.0), make_fleet([10, 20]), dropouts=script)
    records = list(iter(lambda: simulation.step(1e6), None))
    assert [sorted(record.merged.tolist()) for record in records] == [[0, 1], []]
    assert simulation.stop_reason == NOBODY


def test_a_run_in_which_nobody_is_left_for_the_strategy_ends() -> None:
    """FedCS has client 0 alone in tier 1. It is gone for good in its second work, and nobody else will ever start."""
    simulation = Simulation(FedCS(20.0), make_fleet([10, 30, 40]), dropouts=Scripted({(0, 1): (0.5, NEVER)}))
    records = []
    while not simulation.stop_reason:
        records.append(simulation.step(1e6))
    assert simulation.stop_reason == "in 100 rounds nobody was left whom the strategy would start"
    assert len(records) == 1 + 100, "the first to have nothing left is the one it is lost in"
    assert records[-1] is not None
    assert records[-1].note == simulation.stop_reason


def beside_a_file(tmp_path: Path, rows: str, dropouts: Scripted, rounds: int) -> tuple[Simulation, list[RoundRecord]]:
    """Rounds of two clients in tier 1, of which the second is there as a file says."""
    scenario = Scenario(presence=traced(tmp_path / "presence.csv", f"client,from_s,to_s {rows}"))
    simulation = Simulation(Lesson(20.0), make_fleet([16, 17]), scenario=scenario, dropouts=dropouts)
    records = []
    for _ in range(rounds):
        record = simulation.step()
        assert record is not None
        assert np.all(simulation._connected | ~simulation._idle), "who is idle is connected"
        records.append(record)
    return simulation, records


def test_who_has_left_by_a_file_does_not_come_back_from_a_dropout(tmp_path: Path) -> None:
    """Client 1 drops out at 0.85 s for 2 s, which is noticed at 60.85 s; it has left at 50 s until 100 s meanwhile. The
    rounds that client 0 is alone in close when it lands, every 16 s: the next one opens at 108 s."""
    dropouts = Scripted({(1, 0): (0.1, 2.0)}, notice_s=60.0)
    _, records = beside_a_file(tmp_path, "1,0,50 1,100,inf", dropouts, 7)
    assert [record.started.tolist() for record in records] == [[0, 1], [0], [0], [0], [0], [0], [0, 1]]
    assert [record.lost for record in records] == [0, 0, 0, 1, 0, 0, 0]


def test_who_leaves_by_a_file_before_it_would_drop_out_comes_back_by_the_file(tmp_path: Path) -> None:
    _, records = beside_a_file(tmp_path, "1,0,5 1,50,inf", Scripted({(1, 0): (0.9, NEVER)}), 5)
    assert [record.started.tolist() for record in records] == [[0, 1], [0], [0], [0], [0, 1]]


def test_work_that_a_strategy_drops_does_not_bring_back_who_is_gone() -> None:
    """Client 2 is gone for good at 0 s, unnoticed. SAFA drops its work and starts it again: that is lost, too."""
    dropouts = Scripted({(2, 0): (0.0, NEVER)}, notice_s=1000.0)
    records = rounds_of([10, 12, 14], 8, Safa(round_limit_s=20.0, lag_tolerance=3), dropouts=dropouts)
    assert sum(record.started.tolist().count(2) for record in records) > 1
    assert all(2 not in record.merged for record in records)


def test_dropouts_on_a_shared_band_leave_it_to_the_others() -> None:
    """Two clients with 5 s of computing share a band: alone on it, client 1 sends as if nobody else were there."""
    scenario = Scenario(num_clients=2, spectrum="equal")
    fleet = draw_fleet(scenario, seed=3)
    (alone,) = simulate(FedAvg(), fleet, rounds=1, scenario=scenario, seed=3)
    clock = Simulation(FedAvg(), fleet, seed=3, scenario=scenario, dropouts=Scripted({(0, 0): (0.5, 10.0)}))  # type: ignore[arg-type]
    record = clock.step()
    assert record is not None
    assert (record.merged.tolist(), record.lost) == ([1], 1)
    assert record.end_s <= alone.end_s


def test_copies_and_arrays_that_do_not_fit_are_refused_with_client_and_reason() -> None:
    """Client 0's uploads come twice, client 1's with the one before, client 2's lack an array. The last starts anew in
    every round: its uploads count, and so does the energy they cost."""
    wrong = Broken(0, duplicated=1.0)
    copies = rounds_of([10, 20, 30], 2, wrong=wrong)
    assert [record.refusals for record in copies] == [(Rejection(0, 0, CAME_BEFORE),), (Rejection(0, 1, CAME_BEFORE),)]
    assert [(record.uploads, len(record.merged)) for record in copies] == [(4, 3), (4, 3)]
    replays = rounds_of([10, 20, 30], 2, wrong=Broken(1, replayed=1.0))
    assert [record.refusals for record in replays] == [(), (Rejection(1, 0, CAME_BEFORE),)]
    lost = rounds_of([10, 20, 30], 3, wrong=Broken(1, replayed=1.0), dropouts=Scripted({(1, 0): (0.5, 1.0)}))
    assert [record.refusals for record in lost] == [(), (), (Rejection(1, 1, CAME_BEFORE),)], (
        "what never came is not again"
    )
    lacking = rounds_of([10, 20, 30], 2, wrong=Broken(2, wrong_arrays=1.0))
    assert [record.refusals for record in lacking] == [
        (Rejection(2, 0, WRONG_ARRAYS),),
        (Rejection(2, 1, WRONG_ARRAYS),),
    ]
    assert [(record.uploads, record.merged.tolist()) for record in lacking] == [(3, [0, 1]), (3, [0, 1])]
    assert [record.compute_j for record in lacking] == [6, 6]
    assert lacking[0].bytes_up == 3 * 12500


def test_without_the_guard_a_copy_would_be_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RejectionLedger, "came_before", lambda *_: False)
    (record,) = rounds_of([10, 20, 30], 1, wrong=Broken(0, duplicated=1.0))
    assert sorted(record.merged.tolist()) == [0, 0, 1, 2]


def test_a_client_refused_too_often_in_a_row_is_set_aside() -> None:
    guards = GuardSettings(set_aside_after=2)
    records = rounds_of([10, 20, 30], 4, wrong=Broken(1, wrong_shape=1.0), guards=guards)
    assert [record.started.tolist() for record in records] == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2]]
    assert [record.note for record in records] == ["", "set aside 1: refused 2 times in a row, wrong shape", "", ""]
    kept = rounds_of([10, 20, 30], 9, wrong=Broken(1, wrong_shape=1.0), guards=GuardSettings(set_aside_after=0))
    assert all(len(record.started) == 3 for record in kept)


class Refusing:
    """A learner that refuses what client 1 sends, and notes what it was told to make and to forget."""

    def __init__(self) -> None:
        self.versions = {0}

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> list[Rejection]:
        refused = [Rejection(client, index, NOT_FINITE) for client, index in updates.keys if client == 1]
        if len(refused) < len(updates):
            self.versions.add(version + 1)
        return refused

    def forget(self, version: int) -> None:
        self.versions.remove(version)

    def signals(self, names: frozenset[str], version: int) -> dict[str, Any]:
        return {}


def test_what_a_client_that_is_set_aside_is_at_is_dropped() -> None:
    """Latencies of 10 and 25 s, buffers of two. The buffer is full at 20 s with two of client 0's, at 30 s with client
    1's of 25 s, which is refused, and again at 50 s with client 1's of 50 s: client 1, at work again or not, is set
    aside, and nothing of it is waited for or kept. Of the versions only the newest and those in use are left."""
    learner = Refusing()
    simulation = Simulation(
        FedBuff(buffer_size=2, concurrency=2),
        make_fleet([10, 25]),
        learner=learner,
        guards=GuardSettings(set_aside_after=2),
    )
    records = [simulation.step() for _ in range(12)]
    kept = [record for record in records if record is not None]
    aside = next(place for place, record in enumerate(kept) if record.note.startswith("set aside 1"))
    assert kept[aside].note == "set aside 1: refused 2 times in a row, not finite"
    assert sum(record.refused for record in kept) == 2
    assert all(1 not in record.merged for record in kept)
    assert all(1 not in record.started for record in kept[aside + 1 :])
    assert len(learner.versions) <= 2
    assert kept[-1].version == sum(len(record.merged) > 0 for record in kept)


def test_a_run_whose_clients_are_all_set_aside_ends() -> None:
    wrong, guards = Broken(0, 1, wrong_shape=1.0), GuardSettings(set_aside_after=3)
    simulation = Simulation(Lesson(20.0), make_fleet([10, 15]), wrong=wrong, guards=guards)
    records = list(iter(lambda: simulation.step(1e6), None))
    assert len(records) == 3
    assert simulation.stop_reason == f"{NOBODY}; 2 of 2 clients were set aside"


@everyone
@pytest.mark.parametrize("seed", range(3))
def test_clients_that_drop_out_unnoticed_and_come_and_go(kind: type[Any], seed: int, tmp_path: Path) -> None:
    """A client can be away while its loss is unnoticed, and back before the server notices."""
    rng = np.random.default_rng(seed)
    edges_s = np.sort(rng.uniform(0, 300, (8, 6)))
    rows = [f"{client},{start_s},{end_s}" for client in range(8) for start_s, end_s in edges_s[client].reshape(3, 2)]
    rows += [f"{client},301,inf" for client in range(8)]
    scenario = Scenario(presence=traced(tmp_path / "presence.csv", " ".join(["client,from_s,to_s", *rows])))
    faults = FaultSettings(dropout_before=0.1, dropout_during=0.4, away_s=20.0, notice_s=60.0)
    strategy = FedBuff(buffer_size=3, concurrency=8) if kind is FedBuff else make(kind)
    fleet = make_fleet([3.0, 5.0, 7.0, 9.0, 11.0, 14.0, 18.0, 27.0])
    records = list(simulate(Watched(strategy), fleet, rounds=80, seed=seed, scenario=scenario, faults=faults))
    assert sum(record.lost or 0 for record in records)
    assert records[-1].version


@everyone
def test_every_strategy_lives_with_faults(kind: type[Any]) -> None:
    scenario = Scenario(num_clients=8, area_km=1.2, cycles_per_sample=(0.5e8, 1.5e8))
    fleet = draw_fleet(scenario, seed=1)
    records = list(simulate(Watched(make(kind)), fleet, rounds=60, seed=1, faults=TROUBLE))
    assert len(records) == 60
    assert sum(record.lost or 0 for record in records) > 0
    assert sum(record.refused for record in records) > 0
    assert sum(len(record.merged) for record in records) > 0


@pytest.mark.parametrize("kind", [Lesson, FedAT, TiFL])
def test_a_run_with_faults_goes_on_with_the_same_bits(kind: type[Any]) -> None:
    scenario = Scenario(num_clients=8, area_km=1.2, cycles_per_sample=(0.5e8, 1.5e8))
    fleet = draw_fleet(scenario, seed=1)

    def begin() -> Simulation:
        guards = GuardSettings(set_aside_after=2)
        return Simulation(make(kind), fleet, seed=1, scenario=scenario, guards=guards, **faults_of(TROUBLE, 8, 1))

    whole, broken = begin(), begin()
    for round in range(60):
        if round in (5, 17, 30, 45):
            values, arrays = broken.state()
            values, arrays = json.loads(json.dumps(values, allow_nan=False)), copy.deepcopy(arrays)
            broken = begin()
            broken.restore(values, arrays)
        there = whole.step()
        if there is None:
            assert broken.step() is None
            break
        assert fields(broken.step()) == fields(there)
    assert broken.over == whole.over
    assert broken.watch.aside.tolist() == whole.watch.aside.tolist()


def test_draws_are_each_clients_own() -> None:
    settings = FaultSettings(dropout_before=0.2, dropout_during=0.3, wrong_clients=0.3, flipped=0.5, nan=0.1)
    faults = faults_of(settings, 1000, seed=5)
    dropouts, wrong = faults["dropouts"], faults["wrong"]
    assert dropouts is not None
    assert wrong is not None
    clients, index = np.arange(1000), np.full(1000, 7)
    moments = dropouts.moments(clients, index)
    assert np.count_nonzero(moments == 0) == pytest.approx(200, abs=45)
    assert np.count_nonzero((moments > 0) & (moments < 1)) == pytest.approx(0.3 * 800, abs=45)
    assert moments[[3, 500]].tolist() == dropouts.moments(np.array([3, 500]), np.array([7, 7])).tolist()
    assert wrong.is_wrong.sum() == 300
    factor = wrong.factor(clients, index)
    assert set(factor[~wrong.is_wrong]) == {1.0}
    assert np.count_nonzero(factor == -1) == pytest.approx(150, abs=30)
    assert np.count_nonzero(np.isnan(wrong.filling(clients, index))) == pytest.approx(30, abs=18)


def test_several_things_are_wrong_at_once() -> None:
    both = CorruptedUploads(FaultSettings(scaled=1.0, scale=3.0, flipped=1.0, nan=1.0, infinity=1.0), 1, seed=0)
    one = np.array([0])
    assert both.factor(one, one).tolist() == [-3]
    assert np.isnan(both.filling(one, one)).all()
    assert both.place(np.arange(1), one, 10).tolist()[0] in range(10)
    assert not both.values_fit(0, 0)
    assert CorruptedUploads(FaultSettings(wrong_shape=1.0), 1, seed=0).values_fit(0, 0)


def test_arrays_that_are_missing_or_longer_do_not_fit() -> None:
    shapes: Shapes = {"weight": (3, 2), "bias": (), "out": (4,)}
    seen = set()
    for index in range(20):
        for fault, reason in (("wrong_shape", WRONG_SHAPE), ("wrong_arrays", WRONG_ARRAYS)):
            sent = CorruptedUploads(FaultSettings(**{fault: 1.0}), 1, seed=0).shapes(0, index, shapes)
            with pytest.raises(InvalidUpdateError) as unfit:
                check_shapes(sent, shapes)
            assert unfit.value.reason == reason
            seen.add(unfit.value.detail)
    assert seen == {
        *("'weight' is missing", "'bias' is missing", "'out' is missing"),
        *("'weight' has (3, 3), not (3, 2)", "'bias' has (1,), not ()", "'out' has (5,), not (4,)"),
    }
    check_shapes(dict(reversed(shapes.items())), shapes)


def test_whatever_is_off_leaves_nothing_of_it() -> None:
    assert faults_of(FaultSettings(), 10, 0) == {"dropouts": None, "wrong": None}
    assert faults_of(FaultSettings(wrong_clients=0.0, flipped=1.0), 10, 0)["wrong"] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dropout_before": 1.1}, "dropout_before must be <= 1, got 1.1"),
        ({"dropout_during": -0.1}, "dropout_during must be >= 0, got -0.1"),
        ({"away_s": 0.0}, "away_s must be >= 1, got 0.0"),
        ({"away_s": 1e10}, "away_s must be at most 1e+09, or inf for never, got 10000000000.0"),
        ({"notice_s": 1e10}, "notice_s must be <= 1000000000, got 10000000000.0"),
        ({"notice_s": float("inf")}, "notice_s must be a finite number, got inf"),
        ({"nan": "often"}, "nan must be a number, got 'often'"),
        ({"scale": 0.0}, "scale must be > 0, got 0.0"),
        ({"dropout": 0.1}, "setting 'dropout' is unknown"),
    ],
)
def test_impossible_faults(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        FaultSettings(**settings)
    assert str(refused.value).startswith(f"[faults] {message}")


def test_settings_without_effect_are_told() -> None:
    told = FaultSettings(away_s=3.0, scale=2.0, wrong_clients=0.5).without_effect(8)
    assert told == [
        "faults.away_s = 3.0 changes nothing; it goes with dropout_before or dropout_during",
        "faults.wrong_clients = 0.5 changes nothing; it goes with something that goes wrong, such as flipped",
        "faults.scale = 2.0 changes nothing; it goes with scaled > 0",
    ]
    assert FaultSettings(dropout_before=0.1, away_s=3.0, wrong_clients=0.5, nan=0.1).without_effect(8) == []
    assert FaultSettings(wrong_clients=0.01, nan=1.0).without_effect(8) == [
        "faults.wrong_clients = 0.01 of 8 clients is nobody"
    ]


def test_shares_of_nobody_and_everybody() -> None:
    def wrong(share: float) -> BoolArray:
        return CorruptedUploads(FaultSettings(wrong_clients=share, nan=1.0), 7, seed=1).is_wrong

    assert [int(wrong(share).sum()) for share in (0.0, 0.1, 0.5, 1.0)] == [0, 1, 4, 7]
    assert np.all(wrong(0.5) <= wrong(1.0))
