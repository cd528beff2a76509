"""The clock: what closes a round, what it costs, and strategies that break the rules."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fleets import make_fleet, peak_bytes, sealed
from helpers.scripted import NOTHING, Scripted, ids
from helpers.strategies import everyone, make
from lesson import FedAvg, Fleet, InputError, Lesson, Settings, Simulation, draw_fleet, simulate
from lesson.core.arrays import membership
from lesson.strategies.base import (
    AllOf,
    AnyOf,
    Arrivals,
    Closing,
    Deadline,
    GroupMemory,
    Merge,
    RoundPlan,
    ServerView,
    Updates,
)
from lesson.strategies.fedasync import FedAsync
from lesson.strategies.fedbuff import FedBuff
from lesson.strategies.fedcs_greedy import FedCSGreedy
from lesson.strategies.safa import Safa
from lesson.strategies.semisync_steps import SemiSyncSteps


@pytest.mark.parametrize(
    ("closes", "end_s", "merged"),
    [
        (Deadline(16.0), 16.0, [0, 1]),
        (Deadline(3.0), 3.0, []),
        (Arrivals(1), 5.0, [0]),
        (Arrivals(3), 30.0, [0, 1, 2]),
        (Arrivals(3, by_s=20.0), 20.0, [0, 1]),
        (Arrivals(0), 0.0, []),
        (AllOf(ids(1, 2)), 30.0, [0, 1, 2]),
        (AllOf(ids(1, 2), by_s=17.0), 17.0, [0, 1]),
        (AllOf(ids()), 0.0, []),
        (AnyOf([ids(0, 3), ids(1, 2)]), 30.0, [0, 1, 2]),
        (AnyOf([ids(0, 3), ids(1, 2)], by_s=6.0), 6.0, [0]),
    ],
)
def test_what_closes_a_round(closes: Closing, end_s: float, merged: list[int]) -> None:
    record = Simulation(Scripted(closes), make_fleet([5.0, 16.0, 30.0, 38.0])).step()
    assert (record.end_s, record.merged.tolist(), record.note) == (end_s, merged, "")


@pytest.mark.parametrize("closes", [Arrivals(5), AnyOf([]), Deadline(np.inf)])
def test_a_round_that_nothing_can_close_ends_with_the_last_arrival_and_says_so(closes: Closing) -> None:
    record = Simulation(Scripted(closes), make_fleet([5.0, 16.0])).step()
    assert (record.end_s, record.merged.tolist()) == (16.0, [0, 1])
    assert record.note == "no update in flight could close the round"


def test_a_run_in_which_nothing_more_can_happen_ends() -> None:
    simulation = Simulation(Scripted(AllOf(ids(0, 1))), make_fleet([5.0, 16.0]))
    records = list(simulate(Scripted(AllOf(ids(0, 1))), make_fleet([5.0, 16.0]), until_s=1000.0))
    assert [record.end_s for record in records] == [16.0, 16.0]
    assert records[-1].note == "no client is training and none can start"
    simulation.step()
    assert not simulation.stop_reason
    simulation.step()
    assert simulation.stop_reason == records[-1].note


def test_time_passes_in_rounds_without_due_updates() -> None:
    records = list(simulate(Lesson(10.0), make_fleet([35.0]), rounds=4))
    assert [(record.end_s, record.merged.tolist()) for record in records] == [(10, []), (20, []), (30, []), (40, [0])]


def test_runs_end_by_rounds_or_by_time() -> None:
    fleet = make_fleet([5.0, 16.0])
    assert len(list(simulate(FedAvg(), fleet, rounds=3))) == 3
    assert [record.end_s for record in simulate(FedAvg(), fleet, until_s=48.0)] == [16.0, 32.0, 48.0]
    assert [record.end_s for record in simulate(FedAvg(), fleet, until_s=47.9)] == [16.0, 32.0]
    assert len(list(simulate(FedAvg(), make_fleet([0.1]), until_s=0.3))) == 3
    with pytest.raises(InputError, match="rounds or until_s must be given"):
        list(simulate(FedAvg(), fleet))
    with pytest.raises(InputError, match="until_s must be a number > 0, got nan"):
        list(simulate(FedAvg(), fleet, until_s=np.nan))


def test_uploads_in_turn_share_one_channel() -> None:
    """Compute 2, 3 and 8 s, upload 2, 3 and 8 s. In the order of starts: 0 sends from 2 to 4; 1 is ready at 3, waits,
    sends from 4 to 7; 2 would send from 8 to 16, past the 12 s, and is left out."""
    simulation = Simulation(FedCSGreedy(deadline_s=12.0), make_fleet([4.0, 6.0, 16.0]))
    first, second = simulation.step(), simulation.step()
    assert (first.started.tolist(), first.merged.tolist(), first.end_s) == ([0, 1], [0, 1], 7.0)
    assert second.end_s == 14.0


def test_uploads_in_turn_follow_the_order_of_starts() -> None:
    """1 first: sends from 3 to 6; 0 is ready at 2, waits until 6, is there at 8."""
    plan = RoundPlan(ids(1, 0), AllOf(ids(0, 1)), uploads="in-turn")
    record = Simulation(Scripted(Deadline(0), plan=plan), make_fleet([4.0, 6.0])).step()
    assert (record.merged.tolist(), record.end_s) == ([1, 0], 8.0)


def test_uploads_in_turn_take_the_time_and_power_of_the_shared_channel() -> None:
    """Compute 2, 3 and 8 s. On its own channel each sends as long, for 10, 20 and 30 J; on the shared one 1, 2 and 4 s,
    for 10·1/2, 20·2/3 and 30·4/8 J. 0 sends from 2 to 3, 1 from 3 to 5, 2 from 8 to 12. Then in parallel, as always."""
    fleet = make_fleet([4.0, 6.0, 16.0], shared_upload_s=[1.0, 2.0, 4.0])
    plan = RoundPlan(ids(0, 1, 2), AllOf(ids(0, 1, 2)), uploads="in-turn")
    simulation = Simulation(Scripted(Deadline(0), plan=plan), fleet)
    record = simulation.step()
    assert (record.merged.tolist(), record.end_s) == ([0, 1, 2], 12.0)
    assert record.compute_j == 1 + 2 + 3
    assert record.transmit_j == pytest.approx(5 + 40 / 3 + 15)
    simulation.strategy = FedAvg()
    record = simulation.step()
    assert (record.end_s, record.transmit_j) == (12.0 + 16.0, 60.0)


def test_a_client_that_waits_for_the_channel_uses_no_transmit_energy() -> None:
    """0 sends from 2 to 6 s, 1, ready at 3 s, from 6 to 9 s. At 5 s both are called back: 0 has sent 3 of its 4 s, at
    10 J / 2 s; all is computed. A restored simulation knows as much."""
    fleet = make_fleet([4.0, 6.0], shared_upload_s=[4.0, 3.0])
    simulation = Simulation(Scripted(Deadline(0), plan=RoundPlan(ids(0, 1), Deadline(5.0), uploads="in-turn")), fleet)
    simulation.step()
    drop = Scripted(Deadline(0), plan=RoundPlan(NOTHING, Deadline(5.0), drops=ids(0, 1)))
    restored = Simulation(drop, fleet)
    restored.restore(*simulation.state())
    simulation.strategy = drop
    for record in (simulation.step(), restored.step()):
        assert record.compute_j == 3.0
        assert record.transmit_j == pytest.approx(5 * 3.0)


def test_more_local_steps_take_longer_and_cost_more() -> None:
    """Compute and upload 2 s each: in 3·6 = 18 s nine steps fit, 18 + 2 s. 6 s each: three steps, 18 + 6 s."""
    record = Simulation(SemiSyncSteps(period_factor=3.0), make_fleet([4.0, 12.0])).step()
    assert record.merged.tolist() == [0, 1]
    assert record.end_s == 24.0
    assert record.compute_j == 9 * 1 + 3 * 2
    assert record.transmit_j == 10 + 20


def test_canceled_training_costs_the_energy_used_so_far() -> None:
    """Rounds of 1 s, in which two fast clients arrive; 2 and 3 need 50 + 50 s. In round 4, at 3 s, both are called back
    after 3 of their 50 s of computing: 3/50 of 3 and 4 J, nothing sent."""
    simulation = Simulation(Safa(lag_tolerance=3, round_limit_s=1.0), make_fleet([1.0, 1.0, 100.0, 100.0]))
    records = [simulation.step() for _ in range(4)]
    assert [record.end_s for record in records] == [1.0, 2.0, 3.0, 4.0]
    assert records[3].started.tolist() == [0, 1, 2, 3]
    assert records[2].compute_j == 3.0
    assert records[3].compute_j == pytest.approx(3.0 + 3 / 50 * (3 + 4))
    assert records[3].transmit_j == 30.0


def test_training_canceled_during_the_upload_costs_the_energy_used_so_far() -> None:
    """Ten rounds of 1 s; client 2 computes 4 s, has sent 6 of its 8 s at 10 s: all 3 J and 6/8 of 30 J."""
    fleet = make_fleet([1.0, 1.0, 12.0], compute_share=1 / 3)
    simulation = Simulation(Safa(lag_tolerance=10, round_limit_s=1.0), fleet)
    records = [simulation.step() for _ in range(11)]
    assert records[10].start_s == 10.0
    assert records[10].compute_j == pytest.approx(1 + 2 + 3)
    assert records[10].transmit_j == pytest.approx(10 + 20 + 6 / 8 * 30)


def test_a_dropped_update_never_lands() -> None:
    simulation = Simulation(Safa(lag_tolerance=2, round_limit_s=1.0), make_fleet([1.0, 1.0, 2.5]))
    records = [simulation.step() for _ in range(20)]
    assert all(2 not in record.merged for record in records)


def test_arrivals_skip_dropped_updates() -> None:
    """Client 0 would be the next to arrive, at 1 s, but is called back at 0 s; 1 arrives at 2 s."""
    simulation = Simulation(Scripted(Arrivals(0)), make_fleet([1.0, 2.0]))
    simulation.step()
    simulation.strategy = Scripted(Deadline(0), plan=RoundPlan(NOTHING, Arrivals(1), drops=ids(0)))
    record = simulation.step()
    assert (record.end_s, record.merged.tolist()) == (2.0, [1])


def test_fedasync_merges_one_by_one_on_the_same_clock() -> None:
    """2 s and 3 s: arrivals at 2, 3, 4, then both at 6 s, in the order of start: 1 from 3 s, 0 from 4 s."""
    records = list(simulate(FedAsync(), make_fleet([2.0, 3.0]), rounds=4))
    assert [(record.end_s, record.merged.tolist()) for record in records] == [(2, [0]), (3, [1]), (4, [0]), (6, [1, 0])]
    assert [record.staleness.tolist() for record in records] == [[0], [1], [1], [1, 0]]


def test_a_client_may_have_several_updates_in_a_buffer() -> None:
    """Clients of 1 s, 10 s and 10 s, buffer of three: client 0 fills it alone at 3, 6 and 9 s."""
    records = list(simulate(FedBuff(buffer_size=3, concurrency=3), make_fleet([1.0, 10.0, 10.0]), rounds=9))
    merged = {record.end_s: record.merged.tolist() for record in records if len(record.merged)}
    assert merged == {3.0: [0, 0, 0], 6.0: [0, 0, 0], 9.0: [0, 0, 0]}
    assert records[-1].version == 3


def test_unknown_energy_stays_unknown() -> None:
    fleet = make_fleet([5.0, 16.0])
    fleet.compute_j[:] = np.nan
    fleet.transmit_j[:] = np.nan
    fleet.compute_s[:] = np.nan
    fleet.upload_s[:] = np.nan
    record = next(simulate(FedAvg(), fleet, rounds=1))
    assert (record.compute_j, record.transmit_j, record.end_s) == (None, None, 16.0)
    with pytest.raises(InputError, match="this strategy needs compute_s and upload_s of every client"):
        next(simulate(Scripted(Deadline(1), plan=RoundPlan(ids(0), Deadline(1), uploads="in-turn")), fleet, rounds=1))


def test_a_client_that_was_dropped_but_not_restarted_is_freed_again() -> None:
    """Client 1 is called back at 1 s; in the round after, it is among those to look at again."""
    seen = []

    class Dropping(Scripted):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            seen.append(view.freed.tolist())
            return RoundPlan(
                np.flatnonzero(view.idle) if view.round == 1 else NOTHING,
                Deadline(float(view.round)),
                drops=ids(1) if view.round == 2 else NOTHING,
            )

    simulation = Simulation(Dropping(Deadline(0)), make_fleet([50.0, 50.0]))
    for _ in range(3):
        simulation.step()
    assert seen == [[0, 1], [], [1]]


def test_a_round_that_only_drops_does_not_end_the_run() -> None:
    simulation = Simulation(Scripted(Arrivals(0)), make_fleet([5.0]))
    simulation.step()
    simulation.strategy = Scripted(Deadline(0), plan=RoundPlan(NOTHING, Arrivals(0), drops=ids(0)))
    assert simulation.step().note == ""
    assert not simulation.stop_reason


def test_a_strategy_that_lets_nothing_happen_is_stopped() -> None:
    """Client 0 works until 5 s, but every round closes at once."""
    records = list(simulate(Scripted(Arrivals(0)), make_fleet([5.0]), until_s=100.0))
    assert records[-1].note == "the strategy neither starts nor aggregates anything"
    assert records[-1].end_s == 0.0


@pytest.mark.parametrize(
    "groups",
    [
        GroupMemory([], {"tier 1": 0.5}),
        GroupMemory([], {}, previous={"tier 1": -0.5}),
        GroupMemory([], {}, previous_total=0.5),
    ],
    ids=["weights", "previous", "previous_total"],
)
def test_a_merge_of_groups_alone_creates_a_version(groups: GroupMemory) -> None:
    simulation = Simulation(
        Scripted(Deadline(1.0), lambda arrived: Merge(ids(), np.empty(0), of="updates", groups=groups)),
        make_fleet([5.0]),
    )
    assert simulation.step().version == 1


def test_a_dropped_upload_frees_the_channel() -> None:
    """Client 0 would send until 100 s; it is called back at once, and client 1, 2 + 2 s, is there at 4 s."""
    begin = RoundPlan(ids(0), Arrivals(0), uploads="in-turn")
    simulation = Simulation(Scripted(Deadline(0), plan=begin), make_fleet([100.0, 4.0]))
    simulation.step()
    simulation.strategy = Scripted(Deadline(0), plan=RoundPlan(ids(1), AllOf(ids(1)), uploads="in-turn", drops=ids(0)))
    assert simulation.step().end_s == 4.0


def test_the_usual_work_costs_the_usual_after_longer_work() -> None:
    simulation = Simulation(SemiSyncSteps(period_factor=9.0), make_fleet([4.0]))
    assert simulation.step().compute_j == 9.0
    simulation.strategy = FedAvg()
    record = simulation.step()
    assert (record.compute_j, record.end_s) == (1.0, 24.0)


def test_steps_are_counted_against_the_usual_ones() -> None:
    """2 s of computing for five steps, 0.4 s each, and 2 s of sending: in 9·2 s 45 steps fit."""
    simulation = Simulation(SemiSyncSteps(period_factor=9.0), make_fleet([4.0], local_steps=5))
    record = simulation.step()
    assert record.end_s == pytest.approx(20.0)
    assert record.compute_j == pytest.approx(9.0)


def test_updates_carry_how_they_were_trained() -> None:
    updates: list[Updates] = []

    def keep(arrived: Updates) -> Merge:
        updates.append(arrived)
        return Merge(arrived.id, np.zeros(len(arrived)))

    parts = {"lr_scale": np.array([2.0, 3.0]), "local_steps": ids(4, 1), "batches": ids(1, 7)}
    plan = RoundPlan(ids(1, 0), AllOf(ids(0, 1)), **parts)  # type: ignore[arg-type]
    simulation = Simulation(Scripted(Deadline(0), keep, plan), make_fleet([1.0, 30.0]))
    simulation.step()
    simulation.step()
    assert [update.client.tolist() for update in updates] == [[0, 1], [0, 1]]
    assert [update.index.tolist() for update in updates] == [[0, 0], [1, 1]]
    assert updates[0].lr_scale.tolist() == [3.0, 2.0]
    assert updates[0].local_steps.tolist() == [1, 4]
    assert updates[0].batches.tolist() == [7, 1]


def test_batches_survive_a_restart_in_flight_and_at_the_server() -> None:
    """Client 0 is there at 4 s and waits, client 1 arrives at 36 s."""
    seen: list[Updates] = []

    def keep(arrived: Updates) -> Merge:
        seen.append(arrived)
        return Merge(arrived.id[:0], np.zeros(0))

    plans = [RoundPlan(ids(0, 1), Deadline(5.0), batches=ids(3, 2)), RoundPlan(ids(), Deadline(60.0))]
    fleet = make_fleet([2.0, 24.0])
    simulation = Simulation(Scripted(Deadline(0), keep, plans[0]), fleet)
    simulation.step()
    restored = Simulation(Scripted(Deadline(0), keep, plans[1]), fleet)
    restored.restore(*simulation.state())
    restored.step()
    assert [update.batches.tolist() for update in seen] == [[3], [3, 2]]


def test_ties_keep_the_order_of_starts() -> None:
    """Client 1 starts at 0 s for 6 s; client 0 for 3 s at 0 s and again at 3 s: both there at 6 s, 1 started first."""
    records = list(simulate(FedAsync(), make_fleet([3.0, 6.0]), rounds=2))
    assert [record.merged.tolist() for record in records] == [[0], [1, 0]]


def test_idle_groups_do_not_close_a_round() -> None:
    """Nobody of group [2] works, so the round waits for client 0."""
    plan = RoundPlan(ids(0, 1), AnyOf([ids(2), ids(0), ids(1)]))
    record = Simulation(Scripted(Deadline(0), plan=plan), make_fleet([5.0, 16.0, 1.0])).step()
    assert record.end_s == 5.0


def test_bytes_follow_the_model_and_are_whole() -> None:
    record = next(simulate(FedAvg(), draw_fleet(Settings(model_bits=1001.0), 3), rounds=1))
    assert (record.bytes_up, record.bytes_down) == (3 * 126, 3 * 126)


def test_draws_differ_from_round_to_round() -> None:
    draws = []

    class Drawing(Scripted):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            draws.append(float(rng.random()))
            return super().open_round(view, rng)

    simulation = Simulation(Drawing(Deadline(1.0)), make_fleet([5.0]))
    simulation.step()
    simulation.step()
    assert draws[0] != draws[1]


def test_the_same_seed_gives_the_same_records() -> None:
    def run(seed: int) -> list[tuple[Any, ...]]:
        fleet = draw_fleet(Settings(), 20, seed=1)
        return [
            tuple(value.tolist() if isinstance(value, np.ndarray) else value for value in vars(record).values())
            for record in simulate(FedBuff(buffer_size=3, concurrency=2), fleet, rounds=40, seed=seed)
        ]

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_the_cost_of_a_round_depends_on_the_clients_involved() -> None:
    """Ten clients are due in every round, whatever the fleet's size: no array as long as the fleet is made."""
    fleet: Fleet = make_fleet([1.0] * 10 + [1e9] * 50_000)
    simulation = Simulation(Lesson(1.0), fleet)
    assert peak_bytes(simulation) < 50_000, "more than a byte per client"


@given(
    st.lists(st.integers(0, 40), unique=True),
    st.lists(st.integers(0, 40), unique=True),
    st.sampled_from([1, 1000]),
    st.sampled_from([0, 600]),
)
def test_membership_of_few_or_many_dense_or_sparse_ids(
    ids: list[int], wanted: list[int], apart: int, more: int
) -> None:
    ids += range(50, 50 + more)
    wanted += range(50 + more // 2, 60 + more)
    there, places = membership(apart * np.array(ids, dtype=np.int64), apart * np.array(wanted, dtype=np.int64))
    assert there.tolist() == [one in wanted for one in ids]
    assert [wanted[place] for place in places] == [one for one in ids if one in wanted]


@pytest.mark.parametrize("known", ["", "compute_s", "upload_s"])
def test_an_unknown_part_of_a_latency_is_its_remainder(known: str) -> None:
    """Estimates that are off change nothing about when work arrives: 7 s and 15 s after it begins."""
    fleet = make_fleet([7.0, 15.0])
    for part in {"compute_s", "upload_s"} - {known}:
        getattr(fleet, part)[:] = np.nan
    records = list(simulate(Lesson(10.0), fleet, rounds=20, settings=Settings(estimate_error=0.1)))
    took_s = {0: set[float](), 1: set[float]()}
    for record in records:
        for client, seconds in zip(record.merged, record.merged_arrived_s - record.merged_started_s, strict=True):
            took_s[int(client)].add(round(float(seconds), 6))
    assert took_s == {0: {7.0}, 1: {15.0}}


@pytest.mark.parametrize("faults", [{}, {"disconnect_during": 0.3}], ids=["no faults", "disconnections"])
@pytest.mark.parametrize("times", [{}, {"slowdown": 0.5, "estimate_error": 0.1}], ids=["fixed", "varying"])
def test_a_saved_state_stays_as_it_is_and_the_fleet_too(times: dict[str, float], faults: dict[str, float]) -> None:
    fleet = sealed(make_fleet([3.0, 15.0, 25.0]))
    simulation = Simulation(FedAsync(), fleet, settings=Settings(**times, **faults))
    for _ in range(3):
        simulation.step()
    saved = simulation.state()
    before = copy.deepcopy(saved)
    for _ in range(10):
        simulation.step()
    assert saved[0] == before[0]
    assert {name: array.tobytes() for name, array in saved[1].items()} == {
        name: array.tobytes() for name, array in before[1].items()
    }


class Keeping:
    """A model server that keeps every version until it is told to forget it."""

    def __init__(self) -> None:
        self.versions = {0}

    def merge(self, updates: Updates, weights: Any, merge: Merge, version: int, round: int) -> list[Any]:
        self.versions.add(version + 1)
        return []

    def forget(self, version: int) -> None:
        self.versions.remove(version)

    def signals(self, names: frozenset[str], version: int) -> dict[str, Any]:
        return {}


@everyone
def test_the_model_server_keeps_the_versions_in_use_and_no_others(kind: type[Any]) -> None:
    settings = Settings(disconnect_during=0.2, offline_s=10.0)
    fleet = make_fleet([3.0, 7.0, 7.0, 15.0, 25.0, 31.0, 90.0])
    simulation = Simulation(make(kind), fleet, model_server=Keeping(), settings=settings)
    for _ in range(60):
        simulation.step()
        ledger = simulation.ledger
        in_use = ledger.updates_of(ledger.clients_in_flight()).base_version.tolist()
        in_use += ledger.at_server.base_version.tolist()
        assert simulation.model_server.versions == {*in_use, simulation.version}  # type: ignore[union-attr]


def test_releasing_versions_looks_at_those_released_alone() -> None:
    """With FedAsync nearly every client works from a version of its own."""

    class Counts(dict[int, int]):
        def items(self) -> Any:
            raise AssertionError("looks at all versions in use")

        __iter__ = keys = values = items

    simulation = Simulation(FedAsync(), draw_fleet(Settings(), 200), model_server=Keeping())
    simulation.ledger._num_updates = Counts(simulation.ledger._num_updates)
    for _ in range(400):
        simulation.step()
    assert len(simulation.ledger._num_updates) > 100


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rounds": None}, "rounds or until_s must be given: otherwise the run would never end"),
        *(
            ({"rounds": wrong}, f"rounds must be a whole number >= 1, got {wrong!r}")
            for wrong in (-3, 0, np.nan, 2.0, True, "x")
        ),
        *(({"until_s": wrong}, f"until_s must be a number > 0, got {wrong!r}") for wrong in (0.0, np.nan, "x", None)),
        *(({"seed": wrong}, f"seed must be a whole number >= 0, got {wrong!r}") for wrong in (-1, 0.5, "x", None)),
        ({"strategy": "lesson"}, "strategy must be a strategy such as FedAvg(), got 'lesson', which has no open_round"),
        ({"strategy": Lesson}, "strategy must be a strategy such as FedAvg(), got the class Lesson; create"),
        ({"fleet": [1.0, 2.0]}, "fleet must be a Fleet, got [1.0, 2.0]"),
        ({"settings": "released"}, "settings must be a Settings object or None, got 'released'"),
        ({"settings": Settings}, "settings must be a Settings object or None, got <class"),
        ({"settings": Settings(trace="nowhere.csv")}, "nowhere.csv does not exist; trace must be"),
    ],
)
def test_arguments_of_simulate_are_checked_when_it_is_called(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"strategy": FedAvg(), "fleet": make_fleet([1.0]), "rounds": 1}
    with pytest.raises(InputError) as caught:
        simulate(**arguments | changed)
    assert str(caught.value).startswith(message)


def test_simulate_accepts_numbers_from_numpy() -> None:
    (record,) = simulate(FedAvg(), make_fleet([1.0]), rounds=np.int32(1), until_s=np.float32(9), seed=np.uint8(3))  # type: ignore[arg-type]
    assert record.end_s == 1.0


def test_energy_of_measured_clients_is_unknown_in_every_round() -> None:
    """Nothing arrives in the first round of 10 s, which costs nobody any known energy either: not 0 J, but unknown."""
    unknown = np.full(1, np.nan)
    fleet = replace(make_fleet([15.0]), compute_j=unknown, transmit_j=unknown, shared_transmit_j=unknown)
    simulation = Simulation(Lesson(10.0), fleet)
    records = [simulation.step() for _ in range(2)]
    assert [(record.uploads, record.compute_j, record.transmit_j) for record in records if record is not None] == [
        (0, None, None),
        (1, None, None),
    ]


def test_an_upload_in_turn_waits_for_those_in_flight() -> None:
    """Client 0 computes 2 s and uploads for 8 s on the shared channel. Client 1 starts at 1 s, computes until 3 s and
    uploads for 4 s, from 10 s on."""
    fleet = make_fleet([4.0, 4.0], shared_upload_s=[8.0, 4.0])

    class InTurn(Scripted):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            closes = Deadline(0.5 + view.round / 2)
            plan = RoundPlan(ids(view.round - 1) if view.round < 3 else ids(), closes, uploads="in-turn")
            return plan if view.round < 3 else replace(plan, closes=AllOf(ids(0, 1)))

    simulation = Simulation(InTurn(Deadline(1.0)), fleet)
    records = [simulation.step() for _ in range(3)]
    assert records[-1] is not None
    assert records[-1].merged_expected_s.tolist() == [10.0, 13.0]
    assert records[-1].merged_arrived_s.tolist() == [10.0, 14.0]
