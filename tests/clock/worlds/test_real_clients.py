"""Rounds of clients that are elsewhere: traces on the wall written out by hand, faults, restarts, the virtual clock."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from helpers.fleets import fields, make_fleet, sealed, traced
from helpers.strategies import make
from helpers.wall import (
    FakeClients,
    FakeClock,
    Federation,
    Holding,
    Took,
    in_simulated_time,
    on_the_wall,
    reasons,
    told,
)
from lesson import FedAvg, Lesson, Settings, Simulation
from lesson.clock.loop import RoundLoop
from lesson.clock.worlds import Event, Joined, Left, RemoteWorld, Reply, make_world
from lesson.clock.worlds.clients import LOST, RESTARTED, TOO_LATE
from lesson.clock.worlds.wall import MIN_PATIENCE_S, NOBODY_S
from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import RunStoppedError
from lesson.strategies import STRATEGIES, FedAsync, FedAT, FedBuff, LessonFilled, LessonMemory, Safa, TiFL
from lesson.strategies.base import RoundPlan, ServerView, Updates

EST_S = [5.0, 16.0, 8.0, 38.0]
TAKES: list[list[Took]] = [[5.0], [8.0, 8.0, 8.0, 8.0, 8.0, 34.0, 8.0], [24.0], [37.0]]
"""Estimated and actual latencies of four clients, at a deadline of 10 s:
0 is as fast as estimated: tier 1.
1 is estimated to be in tier 2, arrives after 8 s, waits for 20 s; in tier 1 from then on. Its sixth piece of work, from
  60 s, takes 34 s: it comes at 94 s; of its last five times the second longest is still 8 s.
2 is estimated to be in tier 1 and arrives at 24 s, two rounds late; in tier 3 from then on: from 30 s, 60 s and 90 s.
3 takes 37 s instead of 38 s, in tier 4 all the same: there at 37 s and 77 s, due at 40 s and 80 s."""


def test_lesson_on_the_wall_by_hand() -> None:
    federation, clients = on_the_wall(Lesson(10.0), make_fleet(EST_S), TAKES)
    records = [federation.step() for _ in range(11)]
    assert [told(record) for record in records] == [
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
    assert clients.lr_scales == [
        {0: 1, 1: 2, 2: 1, 3: 4},
        {0: 1},
        {0: 1, 1: 1},
        {0: 1, 1: 1, 2: 3},
        {0: 1, 1: 1, 3: 4},
        {0: 1, 1: 1},
        {0: 1, 1: 1, 2: 3},
        {0: 1},
        {0: 1, 3: 4},
        {0: 1, 2: 3},
        {0: 1, 1: 1},
    ]
    assert [record.staleness.tolist() for record in records if record is not None][:4] == [
        [0],
        [1, 0],
        [2, 0, 0],
        [0, 3, 0],
    ]
    assert [record.version for record in records if record is not None] == list(range(1, 12))
    assert [record.uploads for record in records if record is not None][:4] == [2, 1, 3, 3]
    assert federation.fleet.latency_s.tolist() == [5.0, 8.0, 24.0, 37.0]
    assert not federation.rejected


def test_late_updates_can_be_dropped_in_real_time() -> None:
    """As above, but what comes at 24 s was due at 10 s, and what comes at 94 s at 70 s: neither is merged, and both
    clients start again when the round in which they came is over."""
    federation, _ = on_the_wall(Lesson(10.0, late="drop"), make_fleet(EST_S), TAKES)
    records = [told(federation.step()) for _ in range(11)]
    assert [records[round - 1] for round in (3, 4, 10, 11)] == [
        (30.0, [0, 1], [0, 1]),
        (40.0, [0, 1, 2], [0, 3, 1]),
        (100.0, [0, 2], [0]),
        (110.0, [0, 1], [0, 1]),
    ]


def test_lesson_moves_its_grid_if_all_updates_arrive_early() -> None:
    """All in tier 1: the round closes at the last arrival, and the grid of round ends begins there. From round 2 on
    client 1 takes 13 s: merged in round 3, at 8 + 2·10 s, and in tier 2 then."""
    federation, _ = on_the_wall(Lesson(10.0), make_fleet([5.0, 8.0]), [[5.0], [8.0, 13.0]])
    assert [told(federation.step()) for _ in range(4)] == [
        (8.0, [0, 1], [0, 1]),
        (18.0, [0, 1], [0]),
        (28.0, [0], [1, 0]),
        (38.0, [0, 1], [0]),
    ]


def test_fedavg_on_the_wall() -> None:
    """Rounds last as long as the slowest client actually takes, whatever was estimated."""
    federation, _ = on_the_wall(FedAvg(), make_fleet([1.0, 1.0, 1.0]), [[2.0], [7.0, 3.0], [4.5]])
    assert [told(federation.step()) for _ in range(3)] == [
        (7.0, [0, 1, 2], [0, 2, 1]),
        (11.5, [0, 1, 2], [0, 1, 2]),
        (16.0, [0, 1, 2], [0, 1, 2]),
    ]


def test_fedasync_on_the_wall() -> None:
    """2 s and 3 s: arrivals at 2, 3, 4, then both at 6 s, as on the virtual clock."""
    federation, _ = on_the_wall(FedAsync(), make_fleet([9.0, 9.0]), [[2.0], [3.0]])
    assert [told(federation.step()) for _ in range(4)] == [
        (2.0, [0, 1], [0]),
        (3.0, [0], [1]),
        (4.0, [1], [0]),
        (6.0, [0], [1, 0]),
    ]


def test_fedbuff_on_the_wall() -> None:
    """Clients of 1 s, 10 s and 10 s, a buffer of three: client 0 fills it alone; what it told of each counts."""
    federation, clients = on_the_wall(
        FedBuff(buffer_size=3, concurrency=3), make_fleet([1.0, 10.0, 10.0]), [[1.0], [10.0], [10.0]]
    )
    clients.tells = lambda _client, index: {"loss": float(index)}
    records = [federation.step() for _ in range(6)]
    assert [told(record) for record in records if record is not None and len(record.merged)] == [
        (3.0, [0], [0, 0, 0]),
        (6.0, [0], [0, 0, 0]),
    ]
    assert records[-1] is not None
    assert federation.world.reports.of_round(records[-1]) == [
        (1.0, {"loss": 3.0}),
        (1.0, {"loss": 4.0}),
        (1.0, {"loss": 5.0}),
    ]


def test_fedat_on_the_wall() -> None:
    """Tiers of 2 and 3 s, of 7 and 7.5 s: reports at 3 and 6 s; at 7.5 s of the slow ones, at 9 s of the fast ones."""
    latency_s = [2.0, 3.0, 7.0, 7.5]
    federation, _ = on_the_wall(FedAT(num_tiers=2), make_fleet(latency_s), [[took_s] for took_s in latency_s])
    assert [told(federation.step()) for _ in range(4)] == [
        (3.0, [0, 1, 2, 3], [0, 1]),
        (6.0, [0, 1], [0, 1]),
        (7.5, [0, 1], [2, 3]),
        (9.0, [2, 3], [0, 1]),
    ]


def test_a_run_is_over_when_its_time_is() -> None:
    """Rounds of 10 s: two of them end within 25 s. Nobody waits longer than that for a third."""
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([5.0, 16.0]), [[5.0], [16.0]])
    assert [told(federation.step(25.0))[0] for _ in range(2)] == [10.0, 20.0]
    assert federation.step(25.0) is None
    assert federation.stop_reason == "time limit reached"
    assert 25.0 <= federation.world.elapsed_s < 25.2
    assert clients.clock.now_s < 1000 + 25.2


def test_the_clock_starts_with_the_first_round() -> None:
    """What is done before, such as looking at the first model, does not shorten the first round."""
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0]), [[5.0]])
    clients.clock.now_s += 100.0
    assert told(federation.step()) == (5.0, [0], [0])


def test_an_error_reply_frees_the_client() -> None:
    """Client 1 fails at once in round 1, and starts again in round 2; rounds are of 10 s because of client 2."""
    federation, _ = on_the_wall(Lesson(10.0), make_fleet([5.0, 6.0, 12.0]), [[5.0], ["client error", 6.0], [12.0]])
    first, second = federation.step(), federation.step()
    assert (told(first), told(second)) == ((10.0, [0, 1, 2], [0]), (20.0, [0, 1], [2, 0, 1]))
    assert (reasons(first), reasons(second)) == ([(1, "client error")], [])
    assert federation.rejected == {"client error": 1}
    assert federation.fleet.latency_s.tolist() == [5.0, 6.0, 12.0]


def test_transferred_bytes_are_counted() -> None:
    """A reply has 7 bytes, a request 11. Client 0 is asked in every round, client 2, in tier 2, in rounds 1 and 3.
    What client 1, lost at 3 s, sends at 16 s has been uploaded, too."""
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([5.0, 16.0, 18.0]), [[5.0], [16.0], [18.0]])
    clients.clock.at(3.0, Left(1))
    records = [federation.step() for _ in range(3)]
    assert [(record.bytes_up, record.bytes_down) for record in records if record is not None] == [
        (7, 3 * 11),
        (3 * 7, 11),
        (7, 2 * 11),
    ]


def test_transferred_bytes_in_simulated_time() -> None:
    """Replies of 7 bytes count in the round in which they arrive in simulated time; client 1 is in tier 2."""
    clients = FakeClients(FakeClock(), [[0.0], [0.0]])
    fleet = replace(make_fleet([5.0, 16.0]), model_bits=8 * 100.0)
    for counts_bytes, expected in ((True, [(7, 22), (14, 11)]), (False, [(100, 200), (200, 100)])):
        world = RemoteWorld(make_world(fleet, Settings(), 0), clients, counts_bytes=counts_bytes)
        loop = RoundLoop(Lesson(10.0), world)
        records = [loop.step() for _ in range(2)]
        assert [(record.bytes_up, record.bytes_down) for record in records if record is not None] == expected


def test_rejections_and_disconnections_are_warnings() -> None:
    heard, warned = list[str](), list[str]()
    options = {"tell": heard.append, "warn": warned.append}
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0, 5.0]), [[5.0], [9.0]], **options)
    clients.clock.at(2.0, Left(1))
    clients.clock.at(3.0, Joined(1))
    federation.step()
    assert heard == ["round 1: client 1 connected"]
    assert warned == ["round 1: rejected update from client 1: node lost", "round 1: client 1 disconnected"]


def test_every_fault_is_logged() -> None:
    heard: list[str] = []
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0, 5.0]), [[5.0], [9.0]], tell=heard.append)
    clients.clock.at(2.0, Reply(1, 0, fault="client error", detail="code 2: no"))
    federation.step()
    assert heard == ["round 1: rejected update from client 1: client error (code 2: no)"]


def test_an_update_without_reply_is_given_up_and_the_client_estimated_slow() -> None:
    """Client 1 is estimated at 5 s and gets the minimum patience, 60 s. In FedAvg all clients wait with it."""
    assert MIN_PATIENCE_S == 60.0
    federation, _ = on_the_wall(FedAvg(), make_fleet([5.0, 5.0]), [[5.0], ["silent", 6.0]])
    first = federation.step()
    assert federation.fleet.latency_s.tolist() == [5.0, 60.0]
    second = federation.step()
    assert (told(first), reasons(first)) == ((60.0, [0, 1], [0]), [(1, "no reply")])
    assert told(second) == (66.0, [0, 1], [0, 1])
    assert federation.fleet.latency_s.tolist() == [5.0, 6.0], "of 6 and 60 s, the shorter"


def test_patience_grows_with_what_is_expected() -> None:
    """20 s are expected: it is given up after 80."""
    federation, _ = on_the_wall(FedAvg(), make_fleet([20.0]), [["silent"]])
    assert told(federation.step()) == (80.0, [0], [])


def test_a_node_lost_at_work() -> None:
    """Client 1 is lost at 3 s; its update comes at 16 s all the same, is counted and not used. It is back at 35 s, and
    in tier 2 as before: from 40 to 60 s. Client 2 is there to have rounds of 10 s."""
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([5.0, 16.0, 18.0]), [[5.0], [16.0], [18.0]])
    clients.clock.at(3.0, Left(1))
    clients.clock.at(35.0, Joined(1))
    records = [federation.step() for _ in range(6)]
    assert [told(record)[1:] for record in records] == [
        ([0, 1, 2], [0]),
        ([0], [0, 2]),
        ([0, 2], [0]),
        ([0], [0, 2]),
        ([0, 1, 2], [0]),
        ([0], [0, 1, 2]),
    ]
    assert [reasons(record) for record in records[:3]] == [[(1, LOST)], [(1, TOO_LATE)], []]
    assert federation.rejected == {LOST: 1, TOO_LATE: 1}


def test_a_node_lost_while_its_update_waits() -> None:
    """There after 8 s, gone at 9 s, due at 20 s: merged then, and not started any more."""
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([5.0, 16.0]), [[5.0], [8.0]])
    clients.clock.at(9.0, Left(1))
    assert [told(federation.step())[1:] for _ in range(3)] == [([0, 1], [0]), ([0], [1, 0]), ([0], [0])]
    assert not federation.rejected


def test_a_node_lost_after_its_update_came() -> None:
    """The update is merged; the client comes back in the round and starts in the next one."""
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0, 8.0]), [[5.0], [8.0]])
    clients.clock.at(5.0, Left(0))
    clients.clock.at(7.0, Joined(0))
    assert [told(federation.step()) for _ in range(2)] == [(8.0, [0, 1], [0, 1]), (16.0, [0, 1], [0, 1])]


def test_a_client_that_joins_late_brings_its_latency() -> None:
    """Rounds of client 0 alone are of 5 s. Client 1, unknown to begin with, is there from 12 s and says that it takes
    13 s: tier 2, from 15 to 35 s."""
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([5.0, math.inf]), [[5.0], [13.0]])
    clients.clock.at(12.0, Joined(1, 13.0, 6.0))
    assert [told(federation.step()) for _ in range(5)] == [
        (5.0, [0], [0]),
        (10.0, [0], [0]),
        (15.0, [0], [0]),
        (25.0, [0, 1], [0]),
        (35.0, [0], [1, 0]),
    ]
    assert clients.lr_scales[3] == {0: 1.0, 1: 2.0}
    fleet = federation.fleet
    assert (fleet.compute_s[1], fleet.upload_s[1], fleet.shared_upload_s[1]) == (6.0, 7.0, 7.0)


def test_the_duration_of_longer_training_is_known_for_late_joiners() -> None:
    """Client 1 is there from 1 s and computes 3 of its 4 s. At a deadline of 10 s lesson-filled gives it three
    minibatches, (10 − 1) / 3, which take it 3·3 + 1 s: as before, it is estimated at 4 s for one."""
    federation, clients = on_the_wall(LessonFilled(10.0), make_fleet([12.0, math.inf]), [[18.0], [10.0]])
    clients.clock.at(1.0, Joined(1, 4.0, 3.0))
    assert [told(federation.step()) for _ in range(3)] == [(10.0, [0], []), (20.0, [1], [0, 1]), (30.0, [0, 1], [1])]
    assert federation.fleet.latency_s[1] == pytest.approx(4.0)


def test_unknown_energy_of_late_joiners_causes_no_warning() -> None:
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0, math.inf]), [[5.0], [5.0]])
    clients.clock.at(1.0, Joined(1, 5.0))
    federation.step()
    record = federation.step()
    assert record is not None
    assert (told(record), record.compute_j) == ((10.0, [0, 1], [0, 1]), None)


def test_a_client_that_rejoins_with_a_new_latency_gets_a_new_estimate() -> None:
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0, 50.0]), [[5.0], [50.0, 4.0]])
    federation.step()
    clients.clock.at(51.0, Left(1))
    clients.clock.at(52.0, Joined(1, 4.0))
    federation.step()
    assert federation.fleet.latency_s.tolist() == [5.0, 4.0]


@pytest.mark.parametrize("fault", ["", TOO_LATE])
def test_a_reply_to_work_given_up_does_not_disturb_newer_work(fault: str) -> None:
    """Client 1, lost and back, is at its second piece of work, from 5 to 12 s, when something comes of the first."""
    federation, clients = on_the_wall(FedAsync(), make_fleet([5.0, 7.0]), [[5.0], ["silent", 7.0]])
    clients.clock.at(1.0, Left(1))
    clients.clock.at(2.0, Joined(1))
    clients.clock.at(6.5, Reply(1, 0, fault=fault))
    clients.give_up = lambda _: None  # type: ignore[method-assign]  # whatever the post does, the loop can tell
    assert [told(federation.step()) for _ in range(3)] == [
        (5.0, [0, 1], [0]),
        (10.0, [0, 1], [0]),
        (12.0, [0], [1]),
    ]
    assert federation.rejected == {LOST: 1, TOO_LATE: 1}
    assert federation.fleet.latency_s.tolist() == [5.0, 7.0]


def test_an_unrequested_reply_is_rejected_and_counted() -> None:
    """An update that comes while its client is at nothing."""
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0, 9.0]), [[5.0], [9.0]])
    clients.clock.at(6.0, Reply(0, 7))
    record = federation.step()
    assert record is not None
    assert (told(record), record.rejected) == ((9.0, [0, 1], [0, 1]), 1)
    assert federation.rejected == {TOO_LATE: 1}


def test_a_round_in_which_all_clients_fail_ends_with_the_last_failure() -> None:
    """Both fail, at 2 and 3 s: the round ends then, with nothing merged, and the next begins."""
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0, 5.0]), [["silent", 5.0], ["silent", 5.0]])
    clients.clock.at(2.0, Reply(0, 0, fault="client error"))
    clients.clock.at(3.0, Reply(1, 0, fault="client crashed"))
    first, second = federation.step(), federation.step()
    assert first is not None
    assert (told(first), first.version) == ((3.0, [0, 1], []), 0)
    assert reasons(first) == [(0, "client error"), (1, "client crashed")]
    assert told(second) == (8.0, [0, 1], [0, 1])
    assert not federation.stop_reason


def test_a_round_whose_last_client_fails_ends_when_that_is_known() -> None:
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0, 5.0]), [[5.0], [50.0]])
    clients.clock.at(7.0, Reply(1, 0, fault="client error"))
    assert told(federation.step()) == (7.0, [0, 1], [0])


def test_a_failure_just_before_the_deadline_does_not_delay_it() -> None:
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([5.0, 9.0]), [[5.0], [50.0]])
    clients.clock.at(10.0, Reply(1, 0, fault="client error"))
    assert told(federation.step()) == (10.0, [0, 1], [0])


def test_clients_that_always_fail_do_not_run_past_the_end() -> None:
    """Nothing is ever merged, and yet the time budget ends the run; a round lasts a second, another passes between."""
    federation, clients = on_the_wall(FedAvg(), make_fleet([5.0]), [["client error"]])
    for _ in range(1000):
        clients.clock.now_s += 1.0
        if federation.step(20.0) is None:
            break
    assert federation.stop_reason == "time limit reached"
    assert federation.rejected["client error"] == 10, "one in two seconds"


def test_a_run_stops_after_a_long_time_without_connected_clients() -> None:
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([5.0, 16.0]), [[5.0], [16.0]])
    clients.clock.at(12.0, Left(0))
    clients.clock.at(14.0, Left(1))
    federation.step()
    with pytest.raises(RunStoppedError, match=r"no client has been connected for 600 s; start some and resume the run"):
        federation.step()
    assert federation.world.elapsed_s == pytest.approx(14 + NOBODY_S, abs=0.2)


def test_time_without_clients_does_not_include_the_previous_round() -> None:
    """A round of FedAvg of 700 s, in which the last two clients are gone for a moment."""
    federation, clients = on_the_wall(FedAvg(), make_fleet([800.0, 800.0]), [[800.0, 5.0], [800.0, 6.0]])
    clients.clock.at(700.0, Left(0))
    clients.clock.at(700.0, Left(1))
    clients.clock.at(710.0, Joined(0))
    assert told(federation.step()) == (710.0, [0, 1], [])
    assert told(federation.step()) == (715.0, [0], [0])


def test_rounds_continue_when_a_client_is_connected_again() -> None:
    """Nobody is there from 12 to 300 s. Round 2 lasts as long; round 3 is of 10 s again."""
    federation, clients = on_the_wall(Lesson(10.0, late="drop"), make_fleet([5.0, 16.0]), [[5.0], [16.0]])
    for client in (0, 1):
        clients.clock.at(12.0, Left(client))
        clients.clock.at(300.0, Joined(client))
    assert [told(federation.step()) for _ in range(4)] == [
        (10.0, [0, 1], [0]),
        (300.0, [0], []),
        (310.0, [0, 1], [0]),
        (320.0, [0], [0, 1]),
    ]
    assert federation.rejected == {LOST: 2, TOO_LATE: 2}


def test_a_round_in_which_no_client_starts_does_not_end_the_run() -> None:
    """Client 0 arrives at 2 s and is gone; client 1 is lost in round 2, in which nobody starts, and comes back."""
    federation, clients = on_the_wall(FedAsync(), make_fleet([2.0, 9.0]), [[2.0], [9.0, 3.0]])
    clients.clock.at(2.0, Left(0))
    clients.clock.at(4.0, Left(1))
    clients.clock.at(20.0, Joined(1))
    assert [told(federation.step()) for _ in range(3)] == [(2.0, [0, 1], [0]), (20.0, [], []), (23.0, [1], [1])]
    assert not federation.stop_reason


def test_a_server_that_restarts_gives_up_what_was_in_flight() -> None:
    """Stopped after 20 s, when client 2 has an update waiting for 30 s and client 3 is at work. An hour later the run
    continues at 20 s: what waits is merged in its slot, client 3 starts again, and what was seen is known."""
    latency_s, takes = [5.0, 9.0, 28.0, 38.0], [[5.0], [7.0], [12.0], [38.0]]
    before, had = on_the_wall(Lesson(10.0), make_fleet(latency_s), takes)
    for _ in range(2):
        before.step()
    values, arrays = before.state()
    assert arrays["world.waiting.0"].tolist() == [20.0]
    after, clients = on_the_wall(Lesson(10.0), make_fleet(latency_s), takes)
    clients.clock.now_s += 3600.0
    after.restore(
        json.loads(json.dumps(values, allow_nan=False)), {name: array.copy() for name, array in arrays.items()}
    )
    assert (after.now_s, after.world.elapsed_s) == (20.0, 20.0)
    assert after.fleet.latency_s.tolist() == before.fleet.latency_s.tolist() == [5.0, 7.0, 12.0, 38.0]
    assert clients.held.keys() == had.held.keys() == {(2, 0)}
    record = after.step()
    assert record is not None
    assert (told(record), reasons(record)) == ((30.0, [0, 1, 3], [2, 0, 1]), [(3, RESTARTED)])
    assert not clients.held, "what is merged is forgotten"
    assert clients.lr_scales == [{0: 1, 1: 1, 3: 4}]
    assert after.rejected == {RESTARTED: 1}


def test_a_restarted_server_knows_what_clients_reported() -> None:
    """At 20 s, when the server restarts, the update of client 2, there since 15 s, waits for 30 s. Its weight and its
    metrics count then."""

    def federation() -> tuple[Federation, FakeClients]:
        clients = Weighing(FakeClock(), [[5.0], [12.0], [15.0]])
        clients.tells = lambda client, _index: {"loss": float(client)}
        return on_the_wall(Lesson(10.0), make_fleet([5.0, 18.0, 28.0]), clients)

    before, _ = federation()
    for _ in range(2):
        before.step()
    after, _ = federation()
    values, arrays = before.state()
    after.restore(json.loads(json.dumps(values, allow_nan=False)), arrays)
    assert after.fleet.client_weight.tolist() == [3.0, 4.0, 5.0]
    record = after.step()
    assert record is not None
    assert record.merged.tolist() == [2, 0]
    assert after.world.reports.of_round(record) == [(5.0, {"loss": 2.0}), (3.0, {"loss": 0.0})]


def test_a_restarted_server_works_with_the_connected_clients() -> None:
    """Of clients 0 and 1 only 1 is there again; 0 comes later, and its latency is new."""
    before, _ = on_the_wall(FedAvg(), make_fleet([5.0, 6.0]), [[5.0], [6.0]])
    before.step()
    after, clients = on_the_wall(FedAvg(), make_fleet([math.inf, 6.5]), [[4.0], [6.0]])
    after.restore(*before.state())
    clients.clock.after(2.0, Joined(0, 4.0, 2.0))
    assert told(after.step()) == (12.0, [1], [1])
    assert told(after.step()) == (18.0, [0, 1], [0, 1])
    assert after.fleet.latency_s.tolist() == [4.0, 6.0]


def test_a_restarted_server_keeps_the_parts_of_measured_latencies() -> None:
    """Clients take 100 s instead of 29 s, of which half is compute time."""
    before, _ = on_the_wall(FedAvg(), make_fleet([29.0]), [[100.0]])
    before.step()
    after, _ = on_the_wall(FedAvg(), make_fleet([29.0]), [[100.0]])
    after.restore(*before.state())
    for name in ("latency_s", "compute_s", "upload_s", "shared_upload_s", "download_s"):
        assert getattr(after.fleet, name).tolist() == getattr(before.fleet, name).tolist(), name


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (FedAT(2), "_members"),
        (TiFL(2), "_members"),
        (Lesson(10.0, participation=1), "_members"),
        (LessonMemory(10.0), "_tier_of"),
    ],
)
def test_a_restarted_server_keeps_the_tiers(strategy: Any, name: str) -> None:
    """Client 0 is estimated to be faster than client 1, but takes longer, which does not change the tiers."""
    before, _ = on_the_wall(strategy, make_fleet([8.0, 15.0]), [[25.0], [9.0]])
    for _ in range(4):
        before.step()
    after, _ = on_the_wall(strategy, make_fleet([8.0, 15.0]), [[25.0], [9.0]])
    values, arrays = before.state()
    after.restore(json.loads(json.dumps(values, allow_nan=False)), arrays)
    after.step()
    before.step()
    assert str(getattr(after.strategy, name)) == str(getattr(before.strategy, name))


class SlowToPoll(FakeClients):
    """Clients whose replies take the server a second each to pull."""

    def poll(self) -> Sequence[Event]:
        events = []
        for event in super().poll():
            self.clock.now_s += 1.0
            events.append(replace(event, received=self.clock.now_s) if isinstance(event, Reply) else event)
        return events


def test_a_reply_arrives_when_it_is_pulled() -> None:
    """Three clients reply after 5 s; the poll that finds their replies begins at 5 s and takes 3 s."""
    federation, _ = on_the_wall(FedAvg(), make_fleet([5.0] * 3), SlowToPoll(FakeClock(), [[5.0]] * 3))
    record = federation.step()
    assert record is not None
    assert record.merged_arrived_s.tolist() == [6.0, 7.0, 8.0]
    assert federation.fleet.latency_s.tolist() == [6.0, 7.0, 8.0]


class Somewhere(Holding):
    """Clients on the virtual clock: replies come in any order, now and then none; what is given up comes too late."""

    def __init__(self, seed: int, faults: dict[tuple[int, int], str] | None = None) -> None:
        super().__init__()
        self.faults, self.num_sent = faults or {}, 0
        self._rng = np.random.default_rng(seed)
        self._pending: list[Reply] = []

    def send(self, updates: Updates, round: int, patience_s: FloatArray) -> int:
        self.num_sent += len(updates)
        assert np.all(patience_s == 3600.0)
        self._pending += [Reply(*update, fault=self.faults.get(update, "")) for update in updates.keys]
        return 0

    def poll(self) -> Sequence[Event]:
        self._rng.shuffle(self._pending)  # type: ignore[arg-type]
        some = self._rng.integers(1 + len(self._pending))
        replies, self._pending = self._pending[:some], self._pending[some:]
        self.held |= {(reply.client, reply.index): np.array([reply.index]) for reply in replies if not reply.fault}
        return replies

    def give_up(self, clients: IntArray) -> None:
        self._pending = [
            Reply(reply.client, reply.index, fault=TOO_LATE) if reply.client in clients else reply
            for reply in self._pending
        ]


everyone = pytest.mark.parametrize("kind", STRATEGIES.values(), ids=lambda kind: kind.__name__)
LATENCIES_S = [3.0, 15.0, 25.0, 8.0, math.inf, 95.0, 9.5]


@pytest.fixture(autouse=True)
def nobody_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.clock.worlds.remote.time.sleep", lambda _: None)


def check_freed(federation: Federation, clients: Holding) -> None:
    """Fail if models, metrics or early replies are kept of updates that are neither in flight nor at the server."""
    ledger = federation.ledger
    in_flight, at_server = set(ledger.updates_of(ledger.clients_in_flight()).keys), set(ledger.at_server.keys)
    assert at_server <= clients.held.keys() <= at_server | in_flight
    assert federation.world._early.keys() <= in_flight
    assert federation.world.reports._metrics.keys() <= at_server | in_flight


@everyone
def test_the_virtual_clock_gives_the_records_of_the_simulation(kind: type[Any]) -> None:
    simulation = Simulation(make(kind), make_fleet(LATENCIES_S), seed=3)
    clients = Somewhere(1)
    federation = in_simulated_time(make(kind), make_fleet(LATENCIES_S), clients, seed=3)
    for _ in range(40):
        assert fields(federation.step()) == fields(simulation.step())
        check_freed(federation, clients)
    assert not federation.rejected


@everyone
def test_times_that_vary_are_those_of_the_simulation(kind: type[Any], tmp_path: Path) -> None:
    """Clients 0, 3 and 6 leave in the middle of their work, and come back; everybody is slower at times."""
    presence = traced(
        tmp_path / "presence.csv", "client,from_s,to_s 0,0,2 0,7,inf 3,0,4 3,20,90 3,99,400 6,0,5 6,30,38 6,50,inf"
    )
    settings = Settings(presence=presence, slowdown=0.5, estimate="quantile")
    simulation = Simulation(make(kind), make_fleet(LATENCIES_S), seed=3, settings=settings)
    clients = Somewhere(1)
    federation = in_simulated_time(make(kind), make_fleet(LATENCIES_S), clients, seed=3, settings=settings)
    num_lost = 0
    for _ in range(40):
        record = federation.step()
        assert fields(record) == fields(simulation.step())
        check_freed(federation, clients)
        num_lost += record.lost if record is not None and record.lost else 0
    assert num_lost
    assert not federation.rejected


def test_a_restart_on_the_virtual_clock_changes_no_record() -> None:
    simulation = Simulation(make(Safa), make_fleet(LATENCIES_S), seed=3)
    records = [fields(simulation.step()) for _ in range(30)]
    before = in_simulated_time(make(Safa), make_fleet(LATENCIES_S), Somewhere(1), seed=3)
    for record in records[:17]:
        assert fields(before.step()) == record
    values, arrays = before.state()
    clients = Somewhere(2)
    after = in_simulated_time(make(Safa), make_fleet(LATENCIES_S), clients, seed=3)
    after.restore(
        json.loads(json.dumps(values, allow_nan=False)), {name: array.copy() for name, array in arrays.items()}
    )
    assert clients.num_sent == before.ledger.num_in_flight, "what was in flight is sent again"
    assert [fields(after.step()) for _ in records[17:]] == records[17:]


def test_safa_drops_work_in_these_tests() -> None:
    """Client 5 needs 95 s, more than five rounds: else the tests above would not see what a drop does."""
    clients = Somewhere(1)
    federation = in_simulated_time(make(Safa), make_fleet(LATENCIES_S), clients, seed=3)
    started = [fields(federation.step())["started"].count(5) for _ in range(40)]
    assert sum(started) > 2


def test_a_fault_on_the_virtual_clock_costs_its_client_the_round() -> None:
    """Tiers 1 and 2. The second update of client 0 fails: it takes its 10 s, is not merged, and the next one starts.
    The first of client 1 fails at 20 s, where both are due. What is rejected for what it holds has been uploaded."""
    faults = {(0, 1): "not finite", (1, 0): "client error"}
    federation = in_simulated_time(Lesson(10.0), make_fleet([5.0, 16.0]), Somewhere(1, faults))
    records = [fields(federation.step()) for _ in range(4)]
    assert [(record["started"], record["merged"], record["uploads"]) for record in records] == [
        ([0, 1], [0], 1),
        ([0], [], 1),
        ([0, 1], [0], 1),
        ([0], [0, 1], 2),
    ]
    assert [len(record["rejections"]) for record in records] == [0, 2, 0, 0]
    assert federation.rejected == {"not finite": 1, "client error": 1}


def test_a_reply_that_comes_again_on_the_virtual_clock_is_rejected() -> None:
    class Twice(Somewhere):
        again: ClassVar[list[Event]] = []

        def poll(self) -> Sequence[Event]:
            events = list(super().poll())
            before, Twice.again = Twice.again, [event for event in events if isinstance(event, Reply)]
            return before + events

    federation = in_simulated_time(FedAvg(), make_fleet([5.0, 6.0]), Twice(0))
    records = [federation.step() for _ in range(4)]
    assert all(record is not None and sorted(record.merged.tolist()) == [0, 1] for record in records)
    assert federation.rejected.keys() == {"already received"}


def test_in_real_time_rejected_content_counts_as_upload_and_toward_exclusion() -> None:
    federation, _ = on_the_wall(FedAvg(), make_fleet([5.0, 6.0]), [["wrong shape"], [6.0]], exclude_after=2)
    records = [federation.step(1e6) for _ in range(3)]
    assert [(record.uploads, record.rejected) for record in records if record is not None] == [(2, 1), (2, 1), (1, 0)]
    assert federation.ledger.excluded.tolist() == [True, False]


def test_a_run_on_the_wall_clock_whose_clients_are_all_excluded_ends_at_once() -> None:
    federation, _ = on_the_wall(Lesson(10.0), make_fleet([5.0, 6.0]), [["not finite"], ["not finite"]])
    records = list(iter(lambda: federation.step(1e6), None))
    assert len(records) == 5
    assert federation.stop_reason == "no client is connected anymore; 2 of 2 clients were excluded"


class Weighing(FakeClients):
    """Clients whose replies say what each of them counts for."""

    def poll(self) -> Sequence[Event]:
        return [
            replace(event, weight=3.0 + event.client) if isinstance(event, Reply) else event for event in super().poll()
        ]


def test_a_federation_on_the_wall_leaves_the_fleet_it_is_given_alone() -> None:
    """The server learns weights and latencies, while the arrays it is given, read-only here, stay as they are."""
    fleet, clock = sealed(make_fleet([5.0, 9.0])), FakeClock()
    clients = Weighing(clock, [[6.0], [7.0, 8.0]])
    clock.at(12.0, Left(1))
    clock.at(20.0, Joined(1, 4.0, 2.0))
    federation, _ = on_the_wall(Lesson(10.0), fleet, clients)
    federation.world.observe_latency(0, 4.0)
    for _ in range(5):
        federation.step()
    assert federation.fleet.client_weight.tolist() == [3.0, 4.0]
    assert federation.fleet.latency_s.tolist() != fleet.latency_s.tolist() == [5.0, 9.0]


@pytest.mark.parametrize("settings", [Settings(), Settings(slowdown=0.5)], ids=["fixed times", "varying times"])
def test_a_federation_on_the_virtual_clock_leaves_the_fleet_it_is_given_alone(settings: Settings) -> None:
    class Weighed(Somewhere):
        def poll(self) -> Sequence[Event]:
            return [replace(event, weight=2.0) for event in super().poll() if isinstance(event, Reply)]

    fleet = sealed(make_fleet(LATENCIES_S))
    federation = in_simulated_time(Lesson(10.0), fleet, Weighed(1), settings=settings)
    for _ in range(5):
        federation.step()
    assert federation.fleet.client_weight.max() == 2.0
    assert fleet.client_weight.max() == 1.0


def test_weights_that_clients_tell_count_from_the_first_merge() -> None:
    """Two clients of equal latency that say they count for 3 and 1."""

    class Weighing(FakeClients):
        def poll(self) -> Sequence[Event]:
            return [
                Reply(event.client, event.index, weight=[3.0, 1.0][event.client]) if isinstance(event, Reply) else event
                for event in super().poll()
            ]

    class Merged:
        def __init__(self) -> None:
            self.weights: dict[int, float] = {}

        def merge(self, updates: Updates, weights: FloatArray, *_: Any) -> list[Any]:
            self.weights = dict(zip(updates.client.tolist(), weights.tolist(), strict=True))
            return []

        def forget(self, version: int) -> None:
            pass

        def signals(self, *_: Any) -> dict[str, Any]:
            return {}

    server = Merged()
    on_the_wall(FedAvg(), make_fleet([5.0, 5.0]), Weighing(FakeClock(), [[5.0], [6.0]]), server)[0].step()
    assert server.weights == {0: 0.75, 1: 0.25}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_run_continues_while_clients_join_and_leave(name: str) -> None:
    """Up to four of six clients are gone at a time, one that nobody knew comes at 40 s; all are there from 300 s on."""
    estimated_s = [3.0, 15.0, 25.0, 8.0, math.inf, 35.0, 9.5]
    for seed in range(6):
        takes: list[list[Took]] = [[min(seconds, 36.0)] for seconds in estimated_s]
        federation, clients = on_the_wall(make(STRATEGIES[name]), make_fleet(estimated_s), takes)
        rng, gone, at_s = np.random.default_rng(seed), set[int](), 0.0
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
        clients.clock.at(40.0, Joined(4, 36.0, 18.0))
        merged = set[int]()
        while federation.now_s < 500 and not federation.stop_reason and federation.round < 1000:
            record = federation.step()
            assert record is not None
            assert record.end_s >= record.start_s
            if record.start_s > 310:
                merged |= set(record.merged.tolist())
        assert not federation.stop_reason
        assert merged, "somebody is merged when all are back"


def test_server_time_between_rounds_is_not_part_of_a_client_latency() -> None:
    """A client of 9 s at a deadline of 10 s, and 3 s of evaluation after every round: rounds begin when they begin."""
    federation, clients = on_the_wall(Lesson(10.0), make_fleet([9.0, 25.0]), [[9.0], [25.0]])
    ends = []
    for _ in range(4):
        record = federation.step()
        assert record is not None
        ends.append((record.start_s, record.end_s, record.merged.tolist()))
        clients.clock.now_s += 3.0
    assert ends[:2] == [(0.0, 10.0, [0]), (13.0, 23.0, [0])]
    assert all(0 in merged for _, _, merged in ends), "it is never late"
    assert federation.fleet.latency_s[0] == pytest.approx(9.0)


def test_slower_work_is_slower_in_all_its_parts() -> None:
    """Estimated to compute 6 s and upload 4 s, a client takes 20 s for its usual work: 12 s and 8 s. Three times the
    work, 44 s expected, then takes 88 s, which is 40 s for the usual."""
    fleet = make_fleet([10.0])
    fleet.compute_s[:], fleet.upload_s[:], fleet.shared_upload_s[:] = 6.0, 4.0, 4.0
    federation, clients = on_the_wall(FedAvg(), fleet, [[20.0], [88.0]])
    federation.step()
    fleet = federation.fleet
    assert (fleet.compute_s[0], fleet.upload_s[0]) == (12.0, 8.0)
    clients.takes = [[88.0]]
    federation.loop.strategy = _Longer()
    federation.step()
    assert federation.world._measured.seen_s[0, -1] == pytest.approx(40.0)
    assert fleet.latency_s[0] == pytest.approx(20.0), "of two, the shorter"
    clients.takes = [[48.0 + 40.0]]  # three times 12 s and 8 s are 44 s: twice as long as estimated once more
    federation.step()
    assert fleet.latency_s[0] == pytest.approx(40.0), "of three, the second longest"
    assert (fleet.compute_s[0], fleet.upload_s[0]) == (pytest.approx(24.0), pytest.approx(16.0))


def test_download_keeps_its_share_of_the_measured_latency() -> None:
    """Estimated to take 2 s, 5 s and 3 s, a client takes 20 s: 4 s, 10 s and 6 s. Three times the work takes 40 s, as
    expected, which is again 20 s for the usual."""
    fleet = make_fleet([10.0])
    fleet.download_s[:], fleet.compute_s[:], fleet.upload_s[:], fleet.shared_upload_s[:] = 2.0, 5.0, 3.0, 3.0
    federation, clients = on_the_wall(FedAvg(), fleet, [[20.0]])
    federation.step()
    fleet = federation.fleet
    assert (fleet.download_s[0], fleet.compute_s[0], fleet.upload_s[0]) == pytest.approx((4.0, 10.0, 6.0))
    clients.takes = [[40.0]]
    federation.loop.strategy = _Longer()
    federation.step()
    assert federation.world._measured.seen_s[0, -1] == pytest.approx(20.0)


def test_first_measurement_of_a_client_estimated_to_take_no_time() -> None:
    """0 s of 0 s is no share that could be kept: the compute time stays 0, and all of the latency is upload time."""
    fleet = make_fleet([0.0])
    federation, _ = on_the_wall(FedAvg(), fleet, [[20.0]])
    federation.step()
    fleet = federation.fleet
    assert (fleet.latency_s[0], fleet.compute_s[0], fleet.upload_s[0]) == (20.0, 0.0, 20.0)


class _Longer(FedAvg):
    """Three times the usual local work."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        plan = super().open_round(view, rng)
        return replace(plan, local_steps=3 * view.local_steps[plan.starts])
