"""Real clients in real time: rounds by hand, faults, clients that join and leave, and restarts of the server."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, resume, sealed, steps
from helpers.scripted import FakeServer, Scripted, Served, ids
from helpers.strategies import make
from helpers.wall import Took, on_the_wall, outline, reasons
from lesson import FedAvg, Lesson
from lesson.clock.records import RoundRecord
from lesson.clock.worlds import Event, Joined, Left, Reply, Returned
from lesson.clock.worlds.clients import LOST, NO_REPLY, RESTARTED, TOO_LATE
from lesson.clock.worlds.wall import NOBODY_S
from lesson.core.errors import RunStoppedError
from lesson.strategies import STRATEGIES, FedAsync
from lesson.strategies.base import AllOf, RoundPlan

ERROR = "client error"


def test_lesson_by_hand() -> None:
    """Deadline 10 s. Client 0 is as fast as estimated: tier 1. Client 1 is estimated to be in tier 2, arrives after
    8 s, waits for 20 s, and is in tier 1 from then on. Its sixth training, from 60 s, takes 34 s; of its last five
    latencies the second longest is still 8 s. Client 2 is estimated to be in tier 1 and arrives at 24 s, two rounds
    late; it is in tier 3 from then on. Client 3 takes 37 s instead of 38 s, in tier 4 all the same."""
    takes: list[list[Took]] = [[5.0], [8.0, 8.0, 8.0, 8.0, 8.0, 34.0, 8.0], [24.0], [37.0]]
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([5.0, 16.0, 8.0, 38.0]), takes)
    records = steps(federation, 11)
    assert [outline(record) for record in records] == [
        (10.0, [0, 1, 2, 3], [0]),
        (20.0, [0], [1, 0]),
        (30.0, [0, 1], [2, 0, 1]),
        (40.0, [0, 1, 2], [0, 3, 1]),
        (50.0, [0, 1, 3], [0, 1]),
        (60.0, [0, 1], [2, 0, 1]),
        (70.0, [0, 1, 2], [0]),
        (80.0, [0], [0, 3]),
        (90.0, [0, 3], [2, 0]),
        (100.0, [0, 2], [1, 0]),
        (110.0, [0, 1], [0, 1]),
    ]
    assert clients.lr_scales[:4] == [{0: 1, 1: 2, 2: 1, 3: 4}, {0: 1}, {0: 1, 1: 1}, {0: 1, 1: 1, 2: 3}]
    assert [record.staleness.tolist() for record in records][:4] == [[0], [1, 0], [2, 0, 0], [0, 3, 0]]
    assert [record.version for record in records] == list(range(1, 12))
    assert [record.uploads for record in records][:4] == [2, 1, 3, 3]
    assert federation.fleet.latency_s.tolist() == [5.0, 8.0, 24.0, 37.0]
    assert not federation.rejected


Rounds = list[tuple[float, list[int], list[int]]]
BY_HAND: dict[str, tuple[Any, list[float], list[list[Took]], dict[float, list[Event]], Rounds, dict[str, int]]] = {
    # All are in tier 1: the round closes at the last arrival, from which the next ones are counted.
    "the grid of round ends moves": (
        Lesson(10.0),
        [5.0, 8.0],
        [[5.0], [8.0, 13.0]],
        {},
        [(8.0, [0, 1], [0, 1]), (18.0, [0, 1], [0]), (28.0, [0], [1, 0]), (38.0, [0, 1], [0])],
        {},
    ),
    "an error reply frees its client": (
        Lesson(10.0),
        [5.0, 6.0, 12.0],
        [[5.0], [ERROR, 6.0], [12.0]],
        {},
        [(10.0, [0, 1, 2], [0]), (20.0, [0, 1], [2, 0, 1])],
        {ERROR: 1},
    ),
    # Lost at 3 s; its update arrives at 16 s all the same, and is not used. It is back at 35 s, in tier 2 as before.
    "a client is lost while it trains": (
        Lesson(10.0),
        [5.0, 16.0, 18.0],
        [[5.0], [16.0], [18.0]],
        {3.0: [Left(1)], 35.0: [Joined(1)]},
        [
            (10.0, [0, 1, 2], [0]),
            (20.0, [0], [0, 2]),
            (30.0, [0, 2], [0]),
            (40.0, [0], [0, 2]),
            (50.0, [0, 1, 2], [0]),
            (60.0, [0], [0, 1, 2]),
        ],
        {LOST: 1, TOO_LATE: 1},
    ),
    "a client is lost while its update waits": (
        Lesson(10.0),
        [5.0, 16.0],
        [[5.0], [8.0]],
        {9.0: [Left(1)]},
        [(10.0, [0, 1], [0]), (15.0, [0], [1, 0]), (20.0, [0], [0])],
        {},
    ),
    # Client 1, lost and back, trains from 5 to 12 s when a reply to its first training arrives.
    "a reply to a training that was given up": (
        FedAsync(),
        [5.0, 7.0],
        [[5.0], ["silent", 7.0]],
        {1.0: [Left(1)], 2.0: [Joined(1)], 6.5: [Reply(1, 0, fault=TOO_LATE)]},
        [(5.0, [0, 1], [0]), (10.0, [0, 1], [0]), (12.0, [0], [1])],
        {LOST: 1},
    ),
    "a reply that nobody asked for": (
        FedAvg(),
        [5.0, 9.0],
        [[5.0], [9.0]],
        {6.0: [Reply(0, 7)], 7.0: [Reply(0, 0)]},
        [(9.0, [0, 1], [0, 1])],
        {TOO_LATE: 1, "already received": 1},
    ),
    "all clients fail": (
        FedAvg(),
        [5.0, 5.0],
        [["silent", 5.0], ["silent", 5.0]],
        {2.0: [Reply(0, 0, fault=ERROR)], 3.0: [Reply(1, 0, fault=ERROR)]},
        [(3.0, [0, 1], []), (8.0, [0, 1], [0, 1])],
        {ERROR: 2},
    ),
    "nobody is connected for a while": (
        Lesson(10.0, late="drop"),
        [5.0, 16.0],
        [[5.0], [16.0]],
        {12.0: [Left(0), Left(1)], 300.0: [Joined(0), Joined(1)]},
        [(10.0, [0, 1], [0]), (300.0, [0], []), (310.0, [0, 1], [0]), (320.0, [0], [0, 1])],
        {LOST: 2, TOO_LATE: 2},
    ),
    "a client returns from another task": (
        FedAsync(),
        [2.0, 9.0],
        [[2.0], [9.0, 3.0]],
        {2.0: [Left(0)], 4.0: [Left(1)], 20.0: [Returned(1)]},
        [(2.0, [0, 1], [0]), (20.0, [], []), (23.0, [1], [1])],
        {LOST: 1, TOO_LATE: 1},
    ),
    "the longest wait without clients does not include the round before": (
        FedAvg(),
        [800.0, 800.0],
        [[800.0, 5.0], [800.0, 6.0]],
        {700.0: [Left(0), Left(1)], 710.0: [Joined(0)]},
        [(710.0, [0, 1], []), (715.0, [0], [0])],
        {LOST: 2},
    ),
    # Client 1, unknown at first, connects at 12 s and is assumed to take 13 s: tier 2, from 15 to 35 s.
    "a client joins late": (
        Lesson(10.0),
        [5.0, math.inf],
        [[5.0], [13.0]],
        {12.0: [Joined(1, assumed_s=13.0)]},
        [(5.0, [0], [0]), (10.0, [0], [0]), (15.0, [0], [0]), (25.0, [0, 1], [0]), (35.0, [0], [1, 0])],
        {},
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_rounds_by_hand(name: str) -> None:
    strategy, latencies, takes, events, rounds, rejected = BY_HAND[name]
    federation, clients = on_the_wall(strategy, make_fleet(latencies), takes)
    for at_s, some in events.items():
        for event in some:
            clients.clock.at(at_s, event)
    assert [outline(federation.step()) for _ in rounds] == rounds
    assert federation.rejected == rejected
    assert not federation.stop_reason


def test_run_ends_at_its_time_limit() -> None:
    """Rounds of 10 s: two of them end within 25 s, and nobody waits longer for a third. The clock starts with the first
    round."""
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([5.0, 16.0]), [[5.0], [16.0]])
    clients.clock.now_s += 100.0
    assert [outline(federation.step(25.0))[0] for _ in range(2)] == [10.0, 20.0]
    assert federation.step(25.0) is None
    assert federation.stop_reason == "time limit reached"
    assert 25.0 <= federation.world.elapsed_s < 25.2


def test_failing_clients_do_not_exceed_the_time_limit() -> None:
    """A round lasts a second, and another one passes between rounds."""
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0]), [[ERROR]])
    for _ in range(1000):
        clients.clock.now_s += 1.0
        if federation.step(20.0) is None:
            break
    assert (federation.stop_reason, federation.rejected[ERROR]) == ("time limit reached", 10)


def test_run_stops_after_a_long_time_without_connected_clients() -> None:
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([5.0, 16.0]), [[5.0], [16.0]])
    clients.clock.at(12.0, Left(0))
    clients.clock.at(14.0, Left(1))
    federation.step()
    with pytest.raises(RunStoppedError, match="no client has been connected for 600 s"):
        federation.step()
    assert federation.world.elapsed_s == pytest.approx(14 + NOBODY_S, abs=0.2)


def test_transferred_bytes_are_counted() -> None:
    """A reply has 7 bytes, a request 11. Client 0 is asked in every round, client 2, in tier 2, in rounds 1 and 3.
    Client 1, lost at 3 s, uploads at 16 s all the same."""
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([5.0, 16.0, 18.0]), [[5.0], [16.0], [18.0]])
    clients.clock.at(3.0, Left(1))
    records = steps(federation, 3)
    assert [(one.bytes_up, one.bytes_down) for one in records] == [(7, 3 * 11), (3 * 7, 11), (7, 2 * 11)]


@pytest.mark.parametrize(
    ("latency_s", "timeout_s", "waits_s"), [(5.0, math.inf, (60.0, 120.0)), (20.0, 90.0, (80.0, 90.0))]
)
def test_silent_client_is_given_up(latency_s: float, timeout_s: float, waits_s: tuple[float, float]) -> None:
    """After 4 times its latency, or 60 s; then after twice that. Its estimate stays, until it replies more slowly."""
    takes: list[list[Took]] = [[latency_s, "silent", "silent", 50.0, 50.0]]
    federation, _ = on_the_wall(FedAvg(), make_fleet([9.0]), takes, timeout_s=timeout_s)
    assert federation.step().end_s == latency_s
    for wait_s in waits_s:
        begin_s, record = federation.now_s, federation.step()
        assert (record.end_s - begin_s, reasons(record)) == (wait_s, [(0, NO_REPLY)])
        assert federation.fleet.latency_s.tolist() == [latency_s]
    federation.step()
    assert federation.fleet.latency_s.tolist() == [latency_s], "the second longest of two"
    federation.step()
    assert federation.fleet.latency_s.tolist() == [50.0]


def test_client_that_was_never_measured_has_more_time() -> None:
    """The first round of a cold fleet: 250 s, where a client of 5 s would have 60 s. A client that does not reply is
    not measured, and still has more time in the next round."""
    takes: list[list[Took]] = [[250.0, 5.0], ["silent", 6.0]]
    federation, _ = on_the_wall(FedAvg(), make_fleet([5.0, 5.0]), takes, timeout_s=900.0, first_timeout_s=300.0)
    first = federation.step()
    assert (outline(first), reasons(first)) == ((300.0, [0, 1], [0]), [(1, NO_REPLY)])
    assert federation.fleet.latency_s.tolist() == [250.0, 5.0]
    assert federation.world.are_measured.tolist() == [True, False]
    assert federation.world.patience_s(ids(0, 1), np.array([250.0, 5.0])).tolist() == [900.0, 300.0]


def test_reported_compute_time_is_its_part_of_the_latency() -> None:
    """Of 20 s, 12 s are compute time: 8 s are left for transfers. With three times the local steps, 44 s and 36 s are
    the same. A client cannot compute for longer than it took."""
    plans = [RoundPlan(ids(0), AllOf(ids(0)), local_steps=ids(steps)) for steps in (1, 3, 1)]
    federation, clients = on_the_wall(Scripted(*plans), make_fleet([5.0]), [[20.0, 44.0, 20.0]])
    for compute_s, parts_s in ((12.0, [12.0, 8.0]), (36.0, [12.0, 8.0]), (99.0, [20.0, 0.0])):
        clients.receive = lambda reply, compute_s=compute_s: replace(reply, compute_s=compute_s)  # type: ignore[misc]
        federation.step()
        fleet = federation.fleet
        assert [fleet.compute_s[0], fleet.upload_s[0]] == pytest.approx(parts_s)
        assert fleet.latency_s[0] == pytest.approx(20.0)


@pytest.mark.parametrize(("parts_s", "scale"), [((0.0, 6.0, 4.0), 2.2), ((2.0, 5.0, 3.0), 2.0)])
def test_measured_latency_keeps_the_proportions_of_its_parts(parts_s: tuple[float, float, float], scale: float) -> None:
    """A client that is estimated at 10 s takes 20 s: every part is twice as long. Three times the local steps then take
    `scale` times as long, which is the usual 20 s."""
    fleet = make_fleet([10.0], shared_upload_s=[parts_s[2]])
    fleet.download_s[:], fleet.compute_s[:], fleet.upload_s[:] = parts_s
    plans = [RoundPlan(ids(0), AllOf(ids(0)), local_steps=ids(steps)) for steps in (1, 3)]
    federation, _ = on_the_wall(Scripted(*plans), fleet, [[20.0, 20.0 * scale, 40.0 * scale]])
    for latency_s in (20.0, 20.0, 20.0, 40.0):  # of two, the shorter; of three and four, the second longest
        federation.step()
        now = federation.fleet
        assert now.latency_s[0] == pytest.approx(latency_s)
        parts = np.array([now.download_s[0], now.compute_s[0], now.upload_s[0]])
        assert parts == pytest.approx(np.array(parts_s) * latency_s / 10)
    assert fleet.latency_s.tolist() == [10.0]


def test_measured_latency_is_that_of_the_usual_upload() -> None:
    """Half of 10 s is the upload. At level 32, four times as long, 25 s are as usual; if the client reports 5 s of
    compute time, so are 5 + 4 · 7 s for an upload of 7 s."""
    fleet = replace(make_fleet([10.0]), level=8.0, level_bits={32.0: 400.0, 8.0: 100.0})
    plans = [RoundPlan(ids(0), AllOf(ids(0)), compression=32.0)] * 2
    federation, clients = on_the_wall(Scripted(*plans), fleet, [[25.0, 33.0]])
    federation.step()
    assert [federation.fleet.compute_s[0], federation.fleet.upload_s[0]] == pytest.approx([5.0, 5.0])
    clients.receive = lambda reply: replace(reply, compute_s=5.0)  # type: ignore[misc]
    federation.step()
    now = federation.fleet
    assert now.latency_s[0] == pytest.approx(10.0)  # of two, the shorter
    assert now.upload_s[0] / now.compute_s[0] == pytest.approx(7 / 5)


def test_latency_without_known_parts_is_upload_time() -> None:
    federation, _ = on_the_wall(FedAvg(), make_fleet([0.0]), [[20.0]])
    federation.step()
    fleet = federation.fleet
    assert (fleet.latency_s[0], fleet.compute_s[0], fleet.upload_s[0]) == (20.0, 0.0, 20.0)


def test_server_time_between_rounds_is_not_part_of_a_latency() -> None:
    """A client of 9 s at a deadline of 10 s, and 3 s of evaluation after every round."""
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([9.0, 25.0]), [[9.0], [25.0]])
    records: list[RoundRecord] = []
    for _ in range(4):
        records.append(federation.step())
        clients.clock.now_s += 3.0
    assert [(one.start_s, one.end_s) for one in records] == [(0.0, 10.0), (13.0, 23.0), (26.0, 36.0), (39.0, 49.0)]
    assert all(0 in record.merged for record in records), "it is never late"
    assert federation.fleet.latency_s[0] == pytest.approx(9.0)


def test_reply_arrives_when_it_is_pulled() -> None:
    """Each pull takes the server a second."""
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0] * 3), [[5.0]] * 3)

    def receive(reply: Reply) -> Reply:
        clients.clock.now_s += 1.0
        return replace(reply, received=clients.clock.now_s)

    clients.receive = receive
    (record,) = steps(federation, 1)
    assert record.merged_arrived_s.tolist() == federation.fleet.latency_s.tolist() == [6.0, 7.0, 8.0]


def report(reply: Reply) -> Reply:
    """Add a weight of 3 / (1 + 2·client) and a metric."""
    return replace(reply, weight=3.0 / (1 + 2 * reply.client), metrics={"loss": float(reply.client)})


def test_reported_weights_count_from_the_first_aggregation() -> None:
    fleet, server = sealed(make_fleet([5.0, 5.0])), FakeServer()
    federation, clients = on_the_wall(FedAvg(), fleet, [[5.0], [6.0]])
    clients.receive = report
    Served(federation.loop, server).step()
    assert server.weights == {0: 0.75, 1: 0.25}


def test_rejected_content_counts_as_an_upload_and_toward_exclusion() -> None:
    federation, _ = on_the_wall(FedAvg(), make_fleet([5.0, 6.0]), [["wrong shape"], [6.0]], exclude_after=2)
    records = steps(federation, 3)
    assert [(record.uploads, record.rejected) for record in records] == [(2, 1), (2, 1), (1, 0)]
    assert [record.excluded for record in records] == [(), (0,), ()]


def test_restarted_server_gives_up_updates_in_flight_and_keeps_arrivals() -> None:
    """Stopped after 20 s, when client 2 has an update waiting for 30 s and client 3 is training. An hour later the run
    continues at 20 s: the waiting update is aggregated in its slot, and client 3 starts again."""

    (before, _), (after, clients) = federations = [
        on_the_wall(Lesson(10.0), make_fleet([5.0, 9.0, 28.0, 38.0]), [[5.0], [7.0], [12.0], [38.0]]) for _ in range(2)
    ]
    for _, some in federations:
        some.receive = report
    steps(before, 2)
    clients.clock.now_s += 3600.0
    resume(before, after)
    assert (after.now_s, after.world.elapsed_s) == (20.0, 20.0)
    for name in ("latency_s", "compute_s", "upload_s", "shared_upload_s", "download_s", "client_weight"):
        assert getattr(after.fleet, name).tolist() == getattr(before.fleet, name).tolist()
    assert clients.held.keys() == {(2, 0)}
    (record,) = steps(after, 1)
    assert (outline(record), reasons(record)) == ((30.0, [0, 1, 3], [2, 0, 1]), [(3, RESTARTED)])
    assert after.world.reports.of_round(record) == [(0.6, {"loss": 2.0}), (3.0, {"loss": 0.0}), (1.0, {"loss": 1.0})]
    assert not clients.held, "models of aggregated updates are discarded"


def test_restarted_server_continues_with_connected_clients() -> None:
    """Of clients 0 and 1 only 1 is connected again; 0 joins later, and is faster than before."""
    before, _ = on_the_wall(FedAvg(), make_fleet([5.0, 6.0]), [[5.0], [6.0]])
    before.step()
    after, clients = on_the_wall(FedAvg(), make_fleet([math.inf, 6.5]), [[4.0], [6.0]])
    resume(before, after)
    clients.clock.after(2.0, Joined(0))
    assert [outline(after.step()) for _ in range(2)] == [(12.0, [1], [1]), (18.0, [0, 1], [0, 1])]
    assert after.fleet.latency_s.tolist() == [4.0, 6.0]


@pytest.mark.parametrize("name", STRATEGIES)
def test_run_continues_while_clients_join_and_leave(name: str) -> None:
    """Up to four of six clients are gone at a time, an unknown one joins at 40 s; all are connected from 300 s on."""
    estimated_s = [3.0, 15.0, 25.0, 8.0, math.inf, 35.0, 9.5]
    takes: list[list[Took]] = [[min(seconds, 36.0)] for seconds in estimated_s]
    federation, clients = on_the_wall(make(STRATEGIES[name]), make_fleet(estimated_s), takes)
    rng, gone, at_s = np.random.default_rng(len(name)), set[int](), 0.0
    for client in rng.choice([0, 1, 2, 3, 5, 6], 25).tolist():
        at_s += float(rng.integers(1, 12))
        if client in gone:
            gone.remove(client)
            clients.clock.at(at_s, Joined(client))
        elif len(gone) < 4:
            gone.add(client)
            clients.clock.at(at_s, Left(client))
    for client in gone:
        clients.clock.at(300.0, Joined(client))
    clients.clock.at(40.0, Joined(4, assumed_s=36.0))
    merged = set[int]()
    while federation.now_s < 450 and not federation.stop_reason and federation.round < 1000:
        (record,) = steps(federation, 1)
        assert record.end_s >= record.start_s
        merged |= set(record.merged.tolist()) if record.start_s > 310 else set()
    assert not federation.stop_reason
    assert merged, "somebody is aggregated when all are back"
