"""Invariants of the ledger that hold after any sequence of transitions."""

from typing import Any

import numpy as np
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from helpers.scripted import ids
from helpers.views import updates
from lesson.clock.ledger import Ledger
from lesson.clock.rejections import NOT_FINITE, Rejection
from lesson.core.arrays import counted
from lesson.core.state import restore_state, state_of
from lesson.strategies.base import NO_UPDATES, Updates

NOT_YET = np.inf


def make() -> Ledger:
    return Ledger(np.ones(5, dtype=np.bool_), exclude_after=2)


class Transitions(RuleBasedStateMachine):
    """Any sequence of transitions, compared with a model of plain dicts and sets."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger, self.now_s = make(), 0.0
        self.in_flight: dict[int, tuple[int, float]] = {}
        """Base version and arrival time of each client's update in flight."""
        self.at_server: list[tuple[int, int]] = []
        """Client and base version of each update at the server, in order of arrival."""
        self.connected, self.excluded = set(range(5)), set[int]()
        self.known_versions, self.forgotten = {0}, set[int]()
        self.to_consider = set(range(5))
        self.num_starts, self.received, self.in_a_row = [0] * 5, [-1] * 5, [0] * 5
        """Number of starts, index of the newest update received, and consecutive rejections of each client."""

    def some(self, data: st.DataObject, clients: set[int]) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(clients)), unique=True, min_size=1)) if clients else []

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        arrives_s = {
            client: self.now_s + data.draw(st.sampled_from([0.0, 1.0, 2.5, NOT_YET]))
            for client in self.some(data, self.connected - self.in_flight.keys())
        }
        same: dict[str, Any] = {"lr_scale": 1.0, "local_steps": 1, "samples": 0, "compute_scale": 1.0, "in_turn": False}
        expected_s = np.ones(len(arrives_s))
        updates = self.ledger.new_updates(ids(*arrives_s), 1, self.now_s, expected_s=expected_s, **same)
        self.ledger.start(updates, np.array([*arrives_s.values()]))
        self.in_flight |= {client: (self.ledger.version, at_s) for client, at_s in arrives_s.items()}
        for client in arrives_s:
            self.num_starts[client] += 1

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        for client in (clients := self.some(data, set(self.in_flight))):
            del self.in_flight[client]
        self.ledger.drop(ids(*clients))
        self.to_consider |= set(clients)

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        for client in self.some(data, {who for who, (_, at_s) in self.in_flight.items() if at_s == NOT_YET}):
            self.ledger.arrive(client, self.now_s)
            self.in_flight[client] = self.in_flight[client][0], self.now_s
            self.received[client] = self.num_starts[client] - 1

    @rule(data=st.data())
    def reschedule(self, data: st.DataObject) -> None:
        later = {client: self.now_s + data.draw(st.sampled_from([0.5, 3.0, NOT_YET])) for client in self.in_flight}
        self.ledger.reschedule(ids(*later), np.array([*later.values()]))
        self.in_flight = {client: (base, later[client]) for client, (base, _) in self.in_flight.items()}

    @rule(data=st.data(), seconds=st.sampled_from([0.0, 1.0, 5.0]))
    def collect(self, data: st.DataObject, seconds: float) -> None:
        self.now_s += seconds
        due = self.ledger.collect(self.now_s)
        assert set(due.client.tolist()) == {who for who, (_, at_s) in self.in_flight.items() if at_s <= self.now_s}
        assert due.arrived_s.tolist() == sorted(due.arrived_s.tolist())
        usable = np.array([data.draw(st.booleans()) for _ in range(len(due))], dtype=np.bool_)
        self.ledger.land(due[usable])
        self.ledger.discard(due[~usable])
        self.at_server += [(who, self.in_flight[who][0]) for who in due.client[usable].tolist()]
        for client in due.client.tolist():
            del self.in_flight[client]
        for client, index in due[usable].keys:
            self.received[client] = index
        self.to_consider |= set(due.client.tolist())

    @rule(data=st.data(), aggregates=st.booleans())
    def release(self, data: st.DataObject, aggregates: bool) -> None:
        rows = np.array([data.draw(st.booleans()) for _ in self.at_server], dtype=np.bool_)
        if aggregates:
            self.ledger.add_version()
            self.known_versions.add(self.ledger.version)
        self.to_consider |= set(self.ledger.release(rows).client.tolist())
        self.at_server = [update for update, row in zip(self.at_server, rows, strict=True) if not row]

    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        clients = self.some(data, set(range(5)))
        self.ledger.disconnect(ids(*clients))
        self.connected -= set(clients)

    @rule(data=st.data())
    def connect(self, data: st.DataObject) -> None:
        clients = self.some(data, set(range(5)))
        self.ledger.connect(ids(*clients))
        self.connected |= set(clients) - self.excluded
        self.to_consider |= set(clients)

    @rule(client=st.integers(0, 4), opens=st.booleans())
    def reconsider(self, client: int, opens: bool) -> None:
        if opens:
            self.ledger.open_round()
            self.to_consider = set()
        self.ledger.reconsider(ids(client))
        self.to_consider.add(client)

    @rule(client=st.integers(0, 4), reason=st.sampled_from([NOT_FINITE, "no reply"]), accepts=st.booleans())
    def count_rejections(self, client: int, reason: str, accepts: bool) -> None:
        if accepts:
            self.ledger.accept(ids(client))
            self.in_a_row[client] = 0
        to_exclude = self.ledger.count_rejections([Rejection(client, 0, reason)])
        if client not in self.excluded:
            self.in_a_row[client] += reason == NOT_FINITE
        limit = reason == NOT_FINITE and self.in_a_row[client] >= 2 and client not in self.excluded
        assert to_exclude == ({client: reason} if limit else {})

    @rule(client=st.integers(0, 4))
    def exclude(self, client: int) -> None:
        if client not in self.excluded:
            self.ledger.exclude(ids(client))
            self.excluded.add(client)
            self.connected.discard(client)
            if self.in_flight.pop(client, None) or any(who == client for who, _ in self.at_server):
                self.to_consider.add(client)
            self.at_server = [update for update in self.at_server if update[0] != client]

    @rule()
    def save_and_restore(self) -> None:
        self.ledger.add_version()  # the version before may go out of use
        self.known_versions.add(self.ledger.version)
        saved, self.ledger = self.ledger, make()
        restore_state(self.ledger, *state_of(saved))
        self.ledger.rebuild_queue()

    @invariant()
    def every_client_is_in_one_state(self) -> None:
        ledger = self.ledger
        assert not np.any(ledger.idle & ledger.busy)
        assert np.array_equal(ledger.idle | ledger.busy, ledger.connected)
        assert set(np.flatnonzero(ledger.connected).tolist()) == self.connected
        assert set(np.flatnonzero(ledger.busy).tolist()) == self.connected & self.in_flight.keys()
        assert set(np.flatnonzero(ledger.excluded).tolist()) == self.excluded
        assert set(ledger.to_consider().tolist()) == self.to_consider
        assert ledger.some_are_gone is bool(self.excluded)
        assert [ledger.was_received(client, self.received[client]) for client in range(5)] == [True] * 5
        assert [ledger.was_received(client, self.received[client] + 1) for client in range(5)] == [False] * 5
        assert (ledger.num_connected, ledger.num_busy) == (len(self.connected), int(ledger.busy.sum()))

    @invariant()
    def updates_are_where_they_should_be(self) -> None:
        ledger = self.ledger
        assert ledger.clients_in_flight().tolist() == sorted(self.in_flight)
        assert ledger.num_in_flight == len(self.in_flight)
        updates = ledger.updates_of(ledger.clients_in_flight())
        assert len({*updates.id.tolist(), *ledger.at_server.id.tolist()}) == len(updates) + len(self.at_server)
        assert [(client, self.num_starts[client] - 1) for client in sorted(self.in_flight)] == updates.keys
        assert ledger.is_deserted == (not self.connected and not self.in_flight and not self.at_server)
        arrivals = sorted(at_s for _, at_s in self.in_flight.values())
        assert [ledger.nth_arrival_s(count + 1) for count in range(len(arrivals))] == arrivals
        assert (ledger.nth_arrival_s(len(arrivals) + 1), ledger.nth_arrival_s(0)) == (np.inf, -np.inf)
        assert ledger.last_arrival_s(np.arange(5)) == ledger.final_arrival_s() == max(arrivals, default=-np.inf)
        here = ledger.at_server
        assert list(zip(here.client.tolist(), here.base_version.tolist(), strict=True)) == self.at_server
        assert ledger.waiting.tolist() == [sum(who == client for who, _ in self.at_server) for client in range(5)]

    @invariant()
    def no_version_is_freed_early_or_kept_too_long(self) -> None:
        self.forgotten |= set(self.ledger.take_unused())
        bases = {base for base, _ in self.in_flight.values()} | {base for _, base in self.at_server}
        assert set(self.ledger.versions) == bases | {self.ledger.version}
        assert self.forgotten == self.known_versions - set(self.ledger.versions)


Transitions.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnySequenceOfTransitions = Transitions.TestCase


def test_updates_at_the_server_are_joined_when_a_column_is_read() -> None:
    ledger, resumed = make(), make()
    ledger.at_server = Updates.join(Updates.join(updates([3]), updates([1, 2])), updates([4]))
    restore_state(resumed, *state_of(ledger))
    for joined in (ledger.at_server, resumed.at_server):
        assert len(joined) == 4
        assert type(joined) is not Updates
        assert joined.client.tolist() == [3, 1, 2, 4]
        assert type(joined) is Updates
        assert joined[np.array([False, True, False, True])].client.tolist() == [1, 4]
    assert not len(NO_UPDATES), "restoring a ledger must not change the constant that it begins with"


def test_few_and_many_numbers_are_counted() -> None:
    assert counted(ids()) == []
    assert counted(ids(7, 3, 7)) == [(3, 1), (7, 2)]
    assert counted(ids(*[7, 3, 7] * 100)) == [(3, 100), (7, 200)]
