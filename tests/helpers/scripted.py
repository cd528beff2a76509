"""A strategy that follows a script, and round loops with fake servers that aggregate updates."""

from collections.abc import Callable
from typing import Any, ClassVar, get_args

import numpy as np

from lesson.clock.loop import RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.rejections import NOT_FINITE, Rejection
from lesson.clock.signals import Signals
from lesson.core.arrays import FloatArray
from lesson.strategies.base import Closing, Every, Merge, RoundPlan, ServerView, Updates


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


NOTHING = ids()


class Scripted:
    """Follows a script of plans, one for each round; the last one is repeated. All arrivals are averaged by default.

    A closing condition in place of a plan starts all clients in round 1 and nobody later.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *script: Any, merge: Callable[[Updates], Merge] | None = None) -> None:
        self.script = script
        self.decide = merge or (lambda arrived: Merge(arrived.id, np.full(len(arrived), 1 / max(1, len(arrived)))))

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        entry = self.script[min(view.round, len(self.script)) - 1]
        if not isinstance(entry, (*get_args(Closing), Every)):
            return entry
        return RoundPlan(np.flatnonzero(view.idle) if view.round == 1 else NOTHING, entry)

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return self.decide(arrived)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class FakeServer:
    """Rejects all updates of some clients, and keeps track of the versions it holds and of the last weights."""

    def __init__(self, *rejects: int) -> None:
        self.rejects, self.versions, self.weights = rejects, {0}, dict[int, float]()

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> list[Rejection]:
        rejected = [Rejection(client, index, NOT_FINITE) for client, index in updates.keys if client in self.rejects]
        self.weights = dict(zip(updates.client.tolist(), weights.tolist(), strict=True))
        if len(rejected) < len(updates) or (merge.groups is not None and merge.groups.has_weights):
            self.versions.add(version + 1)
        return rejected

    def forget(self, version: int) -> None:
        self.versions.remove(version)


class SignalServer:
    """Provides the signals that a function returns for a version, and aggregates nothing."""

    def __init__(self, signals: Callable[[int], Any]) -> None:
        self.signals = signals

    def merge(self, *_: Any) -> list[Any]:
        return []

    def forget(self, version: int) -> None: ...


class Served:
    """A round loop with a fake server, which aggregates the updates of each round and may provide signals."""

    def __init__(self, loop: RoundLoop, server: Any) -> None:
        self.loop, self.server = loop, server
        if hasattr(server, "signals"):
            names = loop.strategy.needs & server.signals(0).keys()
            loop.signals = Signals({name: lambda name=name: server.signals(loop.version)[name] for name in names})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)

    def step(self, until_s: float = np.inf) -> RoundRecord | None:
        loop, server = self.loop, self.server
        if (opened := loop.begin(until_s)) is None:
            return None
        rejections = ()
        if opened.aggregates:
            rejections = server.merge(opened.updates, opened.weights, opened.merge, loop.version, opened.number)
        record = loop.close(opened, rejections)
        for version in opened.unused:
            server.forget(version)
        return record
