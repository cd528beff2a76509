"""Real clients in simulated time: the records are those of the simulation, whenever replies really arrive."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from helpers.fleets import fields, make_fleet, resume, sealed, steps, traced
from helpers.strategies import everyone, make
from helpers.wall import FakeClients, FakeClock, Federation, Holding, in_simulated_time
from lesson import FedAvg, Lesson, RoundLoop, Settings, make_loop
from lesson.clock.worlds import Event, RemoteWorld, Reply, make_world
from lesson.clock.worlds.clients import TOO_LATE
from lesson.core.arrays import FloatArray
from lesson.strategies import Safa
from lesson.strategies.base import Updates

LATENCIES_S = [3.0, 15.0, 25.0, 8.0, math.inf, 95.0, 9.5]


class Somewhere(Holding):
    """Clients that reply in any order and sometimes not at all; replies that were given up arrive late."""

    def __init__(self, seed: int, faults: dict[tuple[int, int], str] | None = None) -> None:
        super().__init__()
        self.faults, self.num_sent = faults or {}, 0
        self._rng = np.random.default_rng(seed)
        self._pending: list[Reply] = []

    def send(self, updates: Updates, round: int, patience_s: FloatArray) -> int:
        self.num_sent += len(updates)
        assert np.all(patience_s == 3600.0)
        self._pending += [Reply(*update, weight=2.0, fault=self.faults.get(update, "")) for update in updates.keys]
        return 0

    def poll(self) -> Sequence[Event]:
        self._rng.shuffle(self._pending)
        some = self._rng.integers(1 + len(self._pending))
        replies, self._pending = self._pending[:some], self._pending[some:]
        self.held |= {reply.key: np.array([reply.index]) for reply in replies if not reply.fault}
        return replies

    def give_up(self, updates: Updates) -> None:
        self._pending = [
            replace(reply, fault=TOO_LATE) if reply.key in updates.keys else reply for reply in self._pending
        ]


@pytest.fixture(autouse=True)
def _nobody_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.clock.worlds.remote.time.sleep", lambda _: None)


def check_freed(federation: Federation, clients: Holding) -> None:
    """Fail if a model is kept for an update that is neither in flight nor at the server."""
    ledger = federation.ledger
    in_flight, at_server = set(ledger.updates_of(ledger.clients_in_flight()).keys), set(ledger.at_server.keys)
    assert at_server <= clients.held.keys() <= at_server | in_flight


@everyone
def test_records_equal_those_of_the_simulation(kind: type[Any], tmp_path: Path) -> None:
    """Clients 0, 3 and 6 leave during their training, and rejoin; all are slower at times."""
    rows = "0,0,2 0,7,inf 3,0,4 3,20,90 3,99,400 6,0,5 6,30,38 6,50,inf"
    presence = traced(tmp_path / "presence.csv", f"client,from_s,to_s {rows}")
    settings = Settings(presence=presence, slowdown=0.5, estimate="quantile")
    simulation = make_loop(make(kind), make_fleet(LATENCIES_S), seed=3, settings=settings)
    clients, fleet = Somewhere(1), sealed(make_fleet(LATENCIES_S))
    federation = in_simulated_time(make(kind), fleet, clients, seed=3, settings=settings)
    for _ in range(25):
        assert fields(federation.step()) == fields(simulation.step())
        check_freed(federation, clients)
    assert not federation.rejected
    assert federation.fleet.client_weight.max() == 2.0


def test_restart_changes_no_record() -> None:
    """SAFA drops updates of client 5, which takes 95 s."""
    simulation = make_loop(make(Safa), make_fleet(LATENCIES_S), seed=3)
    records = [fields(simulation.step()) for _ in range(30)]
    assert sum(record["started"].count(5) for record in records) > 2
    before = in_simulated_time(make(Safa), make_fleet(LATENCIES_S), Somewhere(1), seed=3)
    for record in records[:17]:
        assert fields(before.step()) == record
    clients = Somewhere(2)
    after = resume(before, in_simulated_time(make(Safa), make_fleet(LATENCIES_S), clients, seed=3))
    assert clients.num_sent == before.ledger.num_in_flight, "what was in flight is sent again"
    for record in records[17:]:
        assert fields(after.step()) == record
        check_freed(after, clients)


def test_fault_costs_its_client_the_round() -> None:
    """Tiers 1 and 2. The second update of client 0 is rejected for its content, so it has been uploaded; the first one
    of client 1 fails. Both are due at 20 s."""
    clients = Somewhere(1, {(0, 1): "not finite", (1, 0): "client error"})
    federation = in_simulated_time(Lesson(10.0), make_fleet([5.0, 16.0]), clients)
    records = steps(federation, 4)
    assert [record.started.tolist() for record in records] == [[0, 1], [0], [0, 1], [0]]
    assert [record.merged.tolist() for record in records] == [[0], [], [0], [0, 1]]
    assert [(record.uploads, record.rejected) for record in records] == [(1, 0), (1, 2), (1, 0), (2, 0)]
    assert federation.rejected == {"not finite": 1, "client error": 1}


def test_repeated_reply_is_rejected() -> None:
    class Twice(Somewhere):
        again: ClassVar[list[Event]] = []

        def poll(self) -> Sequence[Event]:
            events = list(super().poll())
            before, Twice.again = Twice.again, events
            return before + events

    federation = in_simulated_time(FedAvg(), make_fleet([5.0, 6.0]), Twice(0))
    assert all(sorted(record.merged.tolist()) == [0, 1] for record in steps(federation, 4))
    assert federation.rejected.keys() == {"already received"}


@pytest.mark.parametrize(("counts", "expected"), [(True, [(7, 22), (14, 11)]), (False, [(100, 200), (200, 100)])])
def test_bytes_count_in_the_round_in_which_replies_arrive(counts: bool, expected: list[tuple[int, int]]) -> None:
    """Replies have 7 bytes, requests 11, the model 100; client 1 is in tier 2."""
    fleet, clients = replace(make_fleet([5.0, 16.0]), model_bits=8 * 100.0), FakeClients(FakeClock(), [[0.0], [0.0]])
    loop = RoundLoop(Lesson(10.0), RemoteWorld(make_world(fleet, Settings(), 0), clients, counts_bytes=counts))
    assert [(record.bytes_up, record.bytes_down) for record in steps(loop, 2)] == expected
