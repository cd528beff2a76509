"""Fake clients and a fake clock for runs in real time: time passes only in calls of `sleep`."""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.clock.loop import RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.worlds import Clients, Event, RemoteWorld, Reply, WallWorld, make_world
from lesson.clock.worlds.clients import NO_REPLY, TOO_LATE
from lesson.core.arrays import FloatArray
from lesson.fleet.fleet import Fleet
from lesson.settings.settings import Settings
from lesson.strategies.base import Strategy, Updates

BYTES_UP, BYTES_DOWN = 7, 11
"""Sizes of the arrays in each reply and in each request of fake clients."""
Took = float | str
"""Seconds until the update arrives, or a fault that is reported immediately; "silent" if there is no reply in time."""


class FakeClock:
    """A clock that advances only in `sleep`, which returns early when an event happens."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._events: list[tuple[float, bool, int, Event]] = []
        self._numbers = count()

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Advance the clock, but not past the next event, so that events are seen exactly when they happen."""
        until_s = min([self.now_s + seconds, *(at_s for at_s, *_ in self._events[:1] if at_s > self.now_s)])
        self.now_s = round(until_s, 9)

    def at(self, at_s: float, event: Event) -> None:
        """Schedule an event `at_s` seconds after the clock's start."""
        self.after(1000.0 + at_s - self.now_s, event)

    def after(self, seconds: float, event: Event) -> None:
        """Schedule an event `seconds` from now; of simultaneous events, replies come first."""
        at_s = round(self.now_s + seconds, 9)
        heapq.heappush(self._events, (at_s, not isinstance(event, Reply), next(self._numbers), event))

    def happened(self) -> list[Event]:
        """Return the events that have happened since the last call."""
        events = []
        while self._events and self._events[0][0] <= self.now_s:
            events.append(heapq.heappop(self._events)[-1])
        return events


class Holding:
    """Received models by client and index of the local training."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], npt.NDArray[np.floating]] = {}

    def forget(self, updates: Updates) -> None:
        for update in updates.keys:
            self.held.pop(update, None)

    def models_of(self, updates: Updates) -> Sequence[npt.NDArray[np.floating]]:
        return [self.held[update] for update in updates.keys]

    def put_back(self, updates: Updates, models: Sequence[npt.NDArray[np.floating]]) -> None:
        self.held |= dict(zip(updates.keys, models, strict=True))


class FakeClients(Holding):
    """Clients whose local trainings take as long as a script says; the last entry of a client's script is repeated."""

    def __init__(self, clock: FakeClock, takes: Sequence[Sequence[Took]]) -> None:
        super().__init__()
        self.clock, self.takes = clock, takes
        self.lr_scales: list[dict[int, float]] = []
        """The step-size factors by client of each call of `send`."""
        self.receive: Callable[[Reply], Reply] = lambda reply: reply
        """Called with each reply that the server pulls, and returns what arrives."""
        self.given_up: set[tuple[int, int]] = set()

    def send(self, updates: Updates, round: int, patience_s: FloatArray) -> int:
        self.lr_scales.append(dict(zip(updates.client.tolist(), updates.lr_scale.tolist(), strict=True)))
        for (client, index), limit_s in zip(updates.keys, patience_s.tolist(), strict=True):
            took = self.takes[client][min(index, len(self.takes[client]) - 1)]
            if took == "silent":
                self.clock.after(limit_s, Reply(client, index, fault=NO_REPLY))
            elif isinstance(took, str):
                self.clock.after(0.0, Reply(client, index, fault=took))
            else:
                self.clock.after(took, Reply(client, index, num_bytes=BYTES_UP))
        return BYTES_DOWN * len(updates)

    def poll(self) -> Sequence[Event]:
        events: list[Event] = []
        for event in self.clock.happened():
            if not isinstance(event, Reply):
                events.append(event)
            elif event.key not in self.given_up:
                if not event.fault:
                    self.held[event.key] = np.array([10.0 * event.client + event.index])
                events.append(self.receive(event))
            elif not event.fault:  # like Flower's post: faults of local trainings that were given up are ignored
                events.append(Reply(event.client, event.index, fault=TOO_LATE, num_bytes=event.num_bytes))
        return events

    def give_up(self, updates: Updates) -> None:
        self.given_up.update(updates.keys)


class Federation:
    """A round loop on real clients that counts rejected updates by reason. It has all attributes of the loop."""

    def __init__(self, loop: RoundLoop) -> None:
        self.loop, self.rejected = loop, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)

    def step(self, until_s: float = np.inf) -> RoundRecord | None:
        record = self.loop.step(until_s)
        if record is not None:
            self.rejected.update(rejection.reason for rejection in record.rejections)
        return record


def on_the_wall(
    strategy: Strategy,
    fleet: Fleet,
    takes: Sequence[Sequence[Took]] | FakeClients,
    tell: Callable[[str], None] = lambda _: None,
    exclude_after: int = 5,
    **options: Any,
) -> tuple[Federation, FakeClients]:
    """Return a federation of fake clients in real time, and the clients; `takes` holds their scripts or the clients.

    `options` are those of `WallWorld`.
    """
    clients = takes if isinstance(takes, FakeClients) else FakeClients(FakeClock(), takes)
    world = WallWorld(fleet, clients, tell, clock=clients.clock, sleep=clients.clock.sleep, **options)
    return Federation(RoundLoop(strategy, world, exclude_after=exclude_after, tell=tell)), clients


def in_simulated_time(
    strategy: Strategy, fleet: Fleet, clients: Clients, settings: Settings | None = None, seed: int = 0
) -> Federation:
    """Return a federation of these clients in simulated time."""
    world = RemoteWorld(make_world(fleet, settings or Settings(), seed), clients)
    return Federation(RoundLoop(strategy, world, seed=seed, exclude_after=5))


def reasons(record: RoundRecord | None) -> list[tuple[int, str]]:
    """Return the clients whose updates were rejected in a round, and why."""
    assert record is not None
    return [(rejection.client, rejection.reason) for rejection in record.rejections]


def outline(record: RoundRecord | None) -> tuple[float, list[int], list[int]]:
    """Return the end of a round, the clients that started in it, and those whose updates were aggregated."""
    assert record is not None
    return record.end_s, record.started.tolist(), record.merged.tolist()
