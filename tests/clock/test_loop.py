"""What closes a round, what it costs, which versions are kept, and how runs end."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, peak_bytes, resume, sealed, steps
from helpers.scripted import NOTHING, FakeServer, Scripted, Served, ids
from lesson import FedAvg, InputError, Lesson, Settings, draw_fleet, make_loop, simulate
from lesson.clock.records import RoundRecord
from lesson.strategies import FedAsync, FedBuff, Safa
from lesson.strategies.base import (
    AllOf,
    AnyOf,
    Arrivals,
    Closing,
    Deadline,
    Every,
    GroupMemory,
    Merge,
    RoundPlan,
    ServerView,
    Updates,
)


@pytest.mark.parametrize(
    ("closes", "end_s", "merged"),
    [
        (Deadline(16.0), 16.0, [0, 1]),
        (Deadline(3.0), 3.0, []),
        (Arrivals(1), 5.0, [0]),
        (Arrivals(3), 30.0, [0, 1, 2]),
        (Arrivals(3, by_s=20.0), 20.0, [0, 1]),
        (Arrivals(2, by_s=16.0 - 1e-12), 16.0, [0, 1]),  # late by rounding only
        (Arrivals(0), 0.0, []),
        (AllOf(ids(1, 2)), 30.0, [0, 1, 2]),
        (AllOf(ids(1, 2), by_s=17.0), 17.0, [0, 1]),
        (AllOf(ids()), 0.0, []),
        (AnyOf([ids(0, 3), ids(1, 2)]), 30.0, [0, 1, 2]),
        (AnyOf([ids(0, 3), ids(1, 2)], by_s=6.0), 6.0, [0]),
    ],
)
def test_what_closes_a_round(closes: Closing, end_s: float, merged: list[int]) -> None:
    record = next(simulate(Scripted(closes), make_fleet([5.0, 16.0, 30.0, 38.0]), rounds=1))
    assert (record.end_s, record.merged.tolist(), record.note) == (end_s, merged, "")


@pytest.mark.parametrize("closes", [Arrivals(5), AnyOf([]), Deadline(np.inf)])
def test_round_that_nothing_closes_ends_with_the_last_arrival(closes: Closing) -> None:
    record = next(simulate(Scripted(closes), make_fleet([5.0, 16.0]), rounds=1))
    assert (record.end_s, record.merged.tolist(), bool(record.note)) == (16.0, [0, 1], True)


def test_group_without_updates_in_flight_does_not_close_a_round() -> None:
    plan = RoundPlan(ids(0, 1), AnyOf([ids(2), ids(0), ids(1)]))
    assert next(simulate(Scripted(plan), make_fleet([5.0, 16.0, 1.0]), rounds=1)).end_s == 5.0


@pytest.mark.parametrize(
    ("script", "ends_s"),
    [
        ([Every(0.1)] * 30, [number * 0.1 for number in range(1, 31)]),  # not a running sum
        ([Every(10.0), Deadline(13.0), Every(10.0), Every(10.0)], [10.0, 13.0, 23.0, 33.0]),
        ([Every(10.0), Every(7.0), Every(7.0), Every(10.0)], [10.0, 17.0, 24.0, 34.0]),
        ([Every(10.0, ids(0)), Every(10.0, [1]), Every(10.0)], [5.0, 15.0, 25.0]),
    ],
)
def test_grid_begins_anew_when_a_round_opens_off_it(script: list[Any], ends_s: list[float]) -> None:
    """The latencies are 5 and 99 s."""
    starts, *later = script
    plans = [RoundPlan(ids(0, 1), starts), *(RoundPlan(NOTHING, closes) for closes in later)]
    loop, restored = (make_loop(Scripted(*plans), make_fleet([5.0, 99.0])) for _ in range(2))
    for end_s in ends_s:
        assert loop.step().end_s == end_s
        restored.restore(*loop.state())
        loop, restored = restored, loop


def test_runs_end_after_their_rounds_or_time() -> None:
    fleet = make_fleet([5.0, 16.0])
    assert len(list(simulate(FedAvg(), fleet, rounds=3))) == 3
    assert [record.end_s for record in simulate(FedAvg(), fleet, until_s=48.0)] == [16.0, 32.0, 48.0]
    assert [record.end_s for record in simulate(FedAvg(), fleet, until_s=47.9)] == [16.0, 32.0]
    assert len(list(simulate(FedAvg(), make_fleet([0.1]), until_s=0.3))) == 3


def test_run_that_has_ended_cannot_be_continued() -> None:
    loop = make_loop(FedAvg(), make_fleet([10.0, 20.0]))
    assert [loop.step(30.0) is None for _ in range(3)] == [False, True, True]
    assert (loop.stop_reason, loop.step(1000.0)) == ("time limit reached", None)


@pytest.mark.parametrize(
    ("strategy", "reason", "rounds", "end_s"),
    [
        (Scripted(AllOf(ids(0))), "no client is training and none can start", 2, 5.0),
        (Scripted(Arrivals(0)), "the strategy neither starts nor aggregates anything", 1001, 0.0),
    ],
)
def test_run_ends_when_nothing_more_can_happen(strategy: Scripted, reason: str, rounds: int, end_s: float) -> None:
    records = list(simulate(strategy, make_fleet([5.0]), until_s=1000.0))
    assert (len(records), records[-1].end_s, records[-1].note) == (rounds, end_s, reason)


def test_rounds_are_closed_once_and_in_turn() -> None:
    loop = make_loop(FedAvg(), make_fleet([2.0]))
    current = loop.begin()
    assert current is not None
    for next_round in (loop.begin, loop.step):
        with pytest.raises(RuntimeError, match=r"^round 1 must be closed before the next one begins$"):
            next_round()
    loop.close(current)
    with pytest.raises(RuntimeError, match="takes it once"):
        loop.close(current)
    assert (loop.round, loop.version) == (1, 1)


def test_round_that_only_drops_does_not_end_the_run() -> None:
    plans = Arrivals(0), RoundPlan(NOTHING, Arrivals(0), drops=ids(0)), RoundPlan(NOTHING, Arrivals(0))
    records = list(simulate(Scripted(*plans), make_fleet([5.0]), until_s=100.0))
    assert [bool(record.note) for record in records] == [False, False, True]


@pytest.mark.parametrize(
    "changed",
    [
        {"rounds": None},
        {"rounds": 0},
        {"until_s": 0.0},
        {"until_s": np.nan},
        {"seed": -1},
        {"strategy": Lesson},
        {"fleet": [1.0, 2.0]},
        {"settings": "released"},
    ],
    ids=str,
)
def test_simulate_checks_its_arguments_when_called(changed: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"strategy": FedAvg(), "fleet": make_fleet([1.0]), "rounds": 1}
    with pytest.raises(InputError, match=rf"^{next(iter(changed))} "):
        simulate(**arguments | changed)


def test_simulate_accepts_numbers_from_numpy() -> None:
    (record,) = simulate(FedAvg(), make_fleet([1.0]), rounds=np.int32(1), until_s=np.float32(9), seed=np.uint8(3))
    assert record.end_s == 1.0


def test_uploads_in_turn_follow_the_order_of_starts() -> None:
    """Compute and upload 2 and 3 s: 1 uploads from 3 to 6 s; 0 is ready at 2 s, waits until 6 s, arrives at 8 s."""
    plan = RoundPlan(ids(1, 0), AllOf(ids(0, 1)), uploads="in-turn")
    record = next(simulate(Scripted(plan), make_fleet([4.0, 6.0]), rounds=1))
    assert (record.merged.tolist(), record.end_s) == ([1, 0], 8.0)


def test_uploads_in_turn_use_the_time_and_power_of_the_shared_channel() -> None:
    """Compute 2, 3 and 8 s. On its own channel, each uploads as long, for 10, 20 and 30 J; on the shared one, 1, 2 and
    4 s, for 10·1/2, 20·2/3 and 30·4/8 J: 0 from 2 to 3 s, 1 from 3 to 5 s, 2 from 8 to 12 s. Then, in parallel."""
    fleet = make_fleet([4.0, 6.0, 16.0], shared_upload_s=[1.0, 2.0, 4.0])
    plans = [RoundPlan(ids(0, 1, 2), AllOf(ids(0, 1, 2)), uploads=how) for how in ("in-turn", "parallel")]
    first, second = simulate(Scripted(*plans), fleet, rounds=2)
    assert (first.merged.tolist(), first.end_s, first.compute_j) == ([0, 1, 2], 12.0, 1 + 2 + 3)
    assert first.transmit_j == pytest.approx(5 + 40 / 3 + 15)
    assert (second.end_s, second.transmit_j) == (12.0 + 16.0, 60.0)


def test_upload_in_turn_waits_for_uploads_in_flight() -> None:
    """Client 0 computes 2 s and uploads for 8 s on the shared channel. Client 1 starts at 1 s, computes until 3 s and
    uploads for 4 s, from 10 s on."""
    plans = [
        RoundPlan(ids(0), Deadline(1.0), uploads="in-turn"),
        RoundPlan(ids(1), AllOf(ids(0, 1)), uploads="in-turn"),
    ]
    *_, record = simulate(Scripted(*plans), make_fleet([4.0, 4.0], shared_upload_s=[8.0, 4.0]), rounds=2)
    assert record.merged_expected_s.tolist() == [10.0, 13.0]
    assert record.merged_arrived_s.tolist() == [10.0, 14.0]


def test_dropped_upload_frees_the_channel_and_never_arrives() -> None:
    """Client 0 would upload until 100 s, but is dropped at once; client 1 arrives after 2 + 2 s."""
    begin = RoundPlan(ids(0), Arrivals(0), uploads="in-turn")
    plans = [begin, RoundPlan(ids(1), Arrivals(1), uploads="in-turn", drops=ids(0)), RoundPlan(ids(), Deadline(200.0))]
    records = list(simulate(Scripted(*plans), make_fleet([100.0, 4.0]), rounds=3))
    assert [(record.end_s, record.merged.tolist()) for record in records] == [(0.0, []), (4.0, [1]), (200.0, [])]


def test_waiting_for_the_channel_uses_no_transmit_energy() -> None:
    """0 uploads from 2 to 6 s, 1, ready at 3 s, from 6 to 9 s. Both are dropped at 5 s: 0 has uploaded for 3 of 4 s,
    at 10 J / 2 s; both have computed. A restored run knows as much."""
    fleet = make_fleet([4.0, 6.0], shared_upload_s=[4.0, 3.0])
    strategy = Scripted(
        RoundPlan(ids(0, 1), Deadline(5.0), uploads="in-turn"), RoundPlan(NOTHING, Deadline(5.0), drops=ids(0, 1))
    )
    loop = make_loop(strategy, fleet)
    loop.step()
    for each in (resume(loop, make_loop(strategy, fleet)), loop):
        (record,) = steps(each, 1)
        assert (record.compute_j, record.transmit_j) == (3.0, pytest.approx(5 * 3.0))


@pytest.mark.parametrize("settings", [None, Settings(slowdown=1e-300)], ids=["nominal", "varying"])
@pytest.mark.parametrize(
    ("at_s", "joules"), [(1.0, (0.0, 0.0)), (5.0, (0.75, 0.0)), (12.0, (1.0, 7.5)), (14.0, (1.0, 10.0))]
)
def test_canceled_training_costs_the_energy_used_so_far(
    at_s: float, joules: tuple[float, float], settings: Settings | None
) -> None:
    """A download of 2 s, 4 s of computing for 1 J, and an upload of 8 s for 10 J."""
    fleet = replace(make_fleet([12.0], compute_share=1 / 3), download_s=np.array([2.0]), latency_s=np.array([14.0]))
    drop = RoundPlan(NOTHING, Deadline(99.0), drops=ids(0))
    strategy = Scripted(Deadline(at_s - 1e-9), drop)
    *_, record = simulate(strategy, fleet, rounds=2, settings=settings)
    assert (record.compute_j, record.transmit_j) == pytest.approx(joules, abs=1e-6)


def test_more_local_steps_take_longer_and_cost_more() -> None:
    """2 s of computing for five steps: 45 steps take 18 s, and the upload 2 s. Then, the usual 4 s."""
    plans = [RoundPlan(ids(0), AllOf(ids(0)), local_steps=steps) for steps in (ids(45), None)]
    records = list(simulate(Scripted(*plans), make_fleet([4.0], local_steps=5), rounds=2))
    assert [record.end_s for record in records] == [20.0, 24.0]
    assert [(record.compute_j, record.transmit_j) for record in records] == [(9.0, 10.0), (1.0, 10.0)]


def test_unknown_energy_stays_unknown() -> None:
    """Nothing arrives in the first round of 10 s: its energy is unknown, too, not 0 J."""
    unknown = np.full(1, np.nan)
    energies = {"compute_j": unknown, "transmit_j": unknown, "shared_transmit_j": unknown}
    fleet = replace(make_fleet([15.0]), compute_s=unknown, upload_s=unknown, **energies)
    records = list(simulate(Lesson(10.0), fleet, rounds=2))
    assert [(one.uploads, one.compute_j, one.transmit_j) for one in records] == [(0, None, None), (1, None, None)]
    with pytest.raises(InputError, match="compute_s and upload_s"):
        next(simulate(Scripted(RoundPlan(ids(0), Deadline(1), uploads="in-turn")), fleet, rounds=1))


def test_updates_that_arrive_together_are_in_order_of_start() -> None:
    """2 s and 3 s: arrivals at 2, 3 and 4 s, then both at 6 s: 1 started at 3 s, 0 at 4 s."""
    records = list(simulate(FedAsync(), make_fleet([2.0, 3.0]), rounds=4))
    assert [(record.end_s, record.merged.tolist()) for record in records] == [(2, [0]), (3, [1]), (4, [0]), (6, [1, 0])]
    assert [record.staleness.tolist() for record in records] == [[0], [1], [1], [1, 0]]
    assert [record.merged_index.tolist() for record in records] == [[0], [0], [1], [1, 2]]


def aggregate_first(*counts: int) -> Callable[[Updates], Merge]:
    """Return a merge that aggregates this many of the updates at the server in each round."""
    left = iter(counts)

    def merge(arrived: Updates) -> Merge:
        count = next(left)
        return Merge(arrived.id[:count], np.ones(count))

    return merge


def test_view_lists_clients_that_can_start_again() -> None:
    """Client 1 is dropped in round 2; client 0 arrives in round 3 and leaves the server in round 4."""
    seen = []

    class Watching(Scripted):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            seen.append(view.to_consider.tolist())
            return super().open_round(view, rng)

    script = Deadline(1.0), RoundPlan(NOTHING, Deadline(2.0), drops=ids(1)), Deadline(6.0), Deadline(7.0), Deadline(8.0)
    strategy = Watching(*script, merge=aggregate_first(0, 0, 0, 1, 0))
    list(simulate(strategy, make_fleet([5.0, 50.0]), rounds=5))
    assert seen == [[0, 1], [], [1], [0], [0]]


@pytest.mark.parametrize(
    "groups", [{"weights": {"a": 0.5}}, {"previous": {"a": -0.5}}, {"previous_total": 0.5}], ids=str
)
def test_merge_of_groups_alone_creates_a_version(groups: dict[str, Any]) -> None:
    memory = GroupMemory(**{"names": [], "weights": {}} | groups)
    strategy = Scripted(Deadline(1.0), merge=lambda _: Merge(ids(), np.empty(0), of="updates", groups=memory))
    assert next(simulate(strategy, make_fleet([5.0]), rounds=1)).version == 1


def test_updates_keep_their_training_options_after_a_resume() -> None:
    """Client 1 computes 1 s and uploads 1 s: it waits at the server when the run is saved at 5 s."""
    seen: list[Updates] = []

    def keep(arrived: Updates) -> Merge:
        seen.append(arrived)
        return Merge(arrived.id[:0], np.zeros(0))

    fleet = make_fleet([24.0, 2.0])
    begin = RoundPlan(ids(0, 1), Deadline(5.0), samples=ids(40, 20), lr_scale=np.array([2.0, 3.0]))
    strategy = Scripted(begin, Deadline(60.0), merge=keep)
    loop = make_loop(strategy, fleet)
    loop.step()
    resume(loop, make_loop(strategy, fleet)).step()
    updates = seen[-1]
    assert (updates.client.tolist(), updates.arrived_s.tolist()) == ([1, 0], [2.0, 36.0])
    assert (updates.lr_scale.tolist(), updates.samples.tolist()) == ([3.0, 2.0], [20, 40])
    assert (updates.local_steps.tolist(), updates.index.tolist()) == ([1, 1], [0, 0])


def test_bytes_of_a_model_are_rounded_up() -> None:
    record = next(simulate(FedAvg(), draw_fleet(Settings(model_bits=1001.0), 3), rounds=1))
    assert (record.bytes_up, record.bytes_down) == (3 * 126, 3 * 126)


def test_draws_depend_on_seed_and_round() -> None:
    draws: list[float] = []

    class Drawing(Scripted):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            draws.append(float(rng.random()))
            return super().open_round(view, rng)

    for seed in (5, 5, 6):
        list(simulate(Drawing(Deadline(1.0), Deadline(2.0)), make_fleet([5.0]), rounds=2, seed=seed))
    assert draws[:2] == draws[2:4]
    assert len(set(draws)) == 4


def test_memory_of_a_round_depends_only_on_its_clients() -> None:
    """Ten clients are due in every round: no array of the length of the fleet is allocated."""
    loop = make_loop(Lesson(1.0), make_fleet([1.0] * 10 + [1e9] * 50_000))
    assert peak_bytes(loop) < 50_000, "more than a byte per client"


@pytest.mark.parametrize("known", ["", "compute_s", "upload_s"])
def test_unknown_part_of_a_latency_is_the_remainder(known: str) -> None:
    """Wrong estimates do not change when updates arrive: 7 s and 15 s after they start."""
    fleet = make_fleet([7.0, 15.0])
    for part in {"compute_s", "upload_s"} - {known}:
        getattr(fleet, part)[:] = np.nan
    for record in simulate(Lesson(10.0), fleet, rounds=20, settings=Settings(estimate_error=0.1)):
        took_s = record.merged_arrived_s - record.merged_started_s
        assert took_s == pytest.approx(np.array([7.0, 15.0])[record.merged])


@pytest.mark.parametrize("settings", [{}, {"slowdown": 0.5, "estimate_error": 0.1, "disconnect_during": 0.3}], ids=str)
def test_run_changes_neither_a_saved_state_nor_the_fleet(settings: dict[str, float]) -> None:
    loop = make_loop(FedAsync(), sealed(make_fleet([3.0, 15.0, 25.0])), settings=Settings(**settings))
    steps(loop, 3)
    values, arrays = loop.state()
    before = copy.deepcopy(values), {name: array.tobytes() for name, array in arrays.items()}
    steps(loop, 10)
    assert (values, {name: array.tobytes() for name, array in arrays.items()}) == before


@pytest.mark.parametrize("strategy", [FedAsync(), Safa(lag_tolerance=1, round_limit_s=10.0)], ids=["fedasync", "safa"])
def test_only_versions_in_use_are_kept(strategy: Any) -> None:
    server, settings = FakeServer(2), Settings(disconnect_during=0.2, offline_s=10.0, exclude_after_rejections=3)
    fleet = make_fleet([3.0, 7.0, 7.0, 15.0, 25.0, 31.0, 90.0])
    loop = Served(make_loop(strategy, fleet, settings=settings), server)
    for _ in range(40):
        loop.step()
        ledger = loop.ledger
        in_use = ledger.updates_of(ledger.clients_in_flight()).base_version.tolist()
        assert server.versions == {*in_use, *ledger.at_server.base_version.tolist(), loop.version}


def rounds_with(
    server: FakeServer, strategy: Any, latencies: list[float], rounds: int, **settings: Any
) -> list[RoundRecord]:
    loop = Served(make_loop(strategy, make_fleet(latencies), settings=Settings(**settings)), server)
    return steps(loop, rounds)


def test_rejected_updates_are_recorded_and_count_as_uploads() -> None:
    records = rounds_with(FakeServer(2), FedAvg(), [10, 20, 30], 2)
    rejections = [[(one.client, one.index, one.reason) for one in record.rejections] for record in records]
    assert rejections == [[(2, 0, "not finite")], [(2, 1, "not finite")]]
    assert [(record.uploads, record.merged.tolist(), record.compute_j) for record in records] == [(3, [0, 1], 6)] * 2
    assert records[0].bytes_up == 3 * 12500


def test_client_is_excluded_after_consecutive_rejections() -> None:
    records = rounds_with(FakeServer(1), FedAvg(), [10, 20, 30], 9, exclude_after_rejections=2)
    assert [record.started.tolist() for record in records] == [[0, 1, 2]] * 2 + [[0, 2]] * 7
    assert [record.excluded for record in records] == [(), (1,)] + [()] * 7
    assert "client 1" in records[1].note
    records = rounds_with(FakeServer(1), FedAvg(), [10, 20, 30], 9, exclude_after_rejections=0)
    assert all(len(record.started) == 3 for record in records)


def test_updates_of_an_excluded_client_are_dropped() -> None:
    """Buffers of two: client 1's updates of 25 and 50 s are rejected at 30 and 50 s; by then, it has started again,
    and has computed for 0 of its 12.5 s."""
    server = FakeServer(1)
    records = rounds_with(server, FedBuff(buffer_size=2, concurrency=2), [10, 25], 12, exclude_after_rejections=2)
    (place,) = [place for place, record in enumerate(records) if record.excluded]
    assert sum(record.rejected for record in records) == 2
    assert not any(1 in record.merged for record in records)
    assert not any(1 in record.started for record in records[place + 1 :])
    assert len(server.versions) <= 2
    assert records[-1].version == sum(len(record.merged) > 0 for record in records)


def test_excluded_client_costs_the_energy_used_so_far() -> None:
    """Client 0's update of 1 s waits. The next one computes 0.5 s and uploads 0.25 of 0.5 s until the first one is
    rejected at 1.75 s: 1 + 1 J for computing, 10 + 5 J for uploading."""
    plans = Deadline(1.0), RoundPlan(ids(0), Deadline(1.75))
    strategy = Scripted(*plans, merge=aggregate_first(0, 1))
    first, second = rounds_with(FakeServer(0), strategy, [1.0], 2, exclude_after_rejections=1)
    assert (first.compute_j, first.transmit_j, second.excluded) == (1.0, 10.0, (0,))
    assert (second.compute_j, second.transmit_j) == pytest.approx((1.0, 5.0))


def test_run_ends_when_all_clients_are_excluded() -> None:
    settings = Settings(exclude_after_rejections=3)
    loop = Served(make_loop(Lesson(20.0), make_fleet([10, 15]), settings=settings), FakeServer(0, 1))
    assert len(list(iter(lambda: loop.step(1e6), None))) == 3
    assert "2 of 2 clients were excluded" in loop.stop_reason


@pytest.mark.parametrize("settings", [Settings(), Settings(slowdown=0.5)], ids=["nominal", "varying"])
def test_run_without_reachable_clients_ends_after_a_round(settings: Settings) -> None:
    (record,) = simulate(FedAvg(), make_fleet([np.inf]), rounds=5, settings=settings)
    assert (record.started.tolist(), record.note) == ([], "no client is training and none can start")
