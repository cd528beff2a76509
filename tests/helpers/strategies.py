"""Every registered strategy, set up for small fleets, and a wrapper that checks what it is shown."""

import inspect
from typing import Any

import numpy as np
import pytest

from lesson import Fleet, Simulation
from lesson.strategies import CA2FL, FADAS, STRATEGIES, FedAT, FedBuff, Malenia, TiFL
from lesson.strategies.base import Merge, RoundPlan, ServerView, Strategy, Updates

SMALL: dict[type[Any], dict[str, int]] = {
    CA2FL: {"buffer_size": 3, "concurrency": 2},
    FADAS: {"buffer_size": 3, "concurrency": 2},
    FedAT: {"num_tiers": 3},
    FedBuff: {"buffer_size": 3, "concurrency": 2},
    TiFL: {"num_tiers": 3},
}
"""Options of strategies whose defaults require more than three clients."""
NUM_ROUNDS: dict[type[Any], int] = {Malenia: 100}
"""Number of rounds in which 24 clients create a version, where 40 are not enough."""


def make(kind: type[Any]) -> Any:
    """Return a strategy with its defaults, adapted to three clients, and a deadline of 10 s if it requires one."""
    needed = [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is inspect.Parameter.empty
    ]
    assert set(needed) <= {"deadline_s"}, f"{kind.__name__} cannot be made from a deadline alone"
    return kind(**dict.fromkeys(needed, 10.0), **SMALL.get(kind, {}))


KINDS = [*STRATEGIES.values()]


everyone = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


Trace = list[tuple[float, list[int], list[int], list[int]]]


def follow(strategy: Any, fleet: Fleet, rounds: int) -> tuple[Trace, list[Merge]]:
    """End, starts (sorted), merged clients and their staleness in each round, and what the strategy merged."""
    merges: list[Merge] = []
    simulation = Simulation(strategy, fleet)
    decide = simulation.strategy.merge
    simulation.strategy.merge = lambda view, arrived: merges.append(decide(view, arrived)) or merges[-1]  # type: ignore[func-returns-value]
    trace: Trace = []
    while len(trace) < rounds and not simulation.stop_reason:
        record = simulation.step()
        assert record is not None
        starts, staleness = sorted(record.started.tolist()), record.staleness.tolist()
        trace.append((record.end_s, starts, record.merged.tolist(), staleness))
    return trace, merges


class Watched:
    """Wraps a strategy and checks what the round loop shows it."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.needs = strategy, strategy.needs
        self.seen: dict[int, int] = {}
        self.idle: set[int] | None = None
        self.waiting: set[int] = set()

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        plan = self.strategy.open_round(view, rng)
        with pytest.raises(ValueError, match="read-only"):
            view.idle[0] = False
        assert not np.any(view.idle & ~np.isfinite(view.latency_s)), "unreachable, yet idle"
        idle, waiting = set(np.flatnonzero(view.idle)), set(np.flatnonzero(view.waiting))
        new = idle if self.idle is None else (idle - self.idle) | (self.waiting - waiting)
        assert new <= set(view.freed), "not told who can start again"
        self.idle = (idle | set(plan.drops)) - set(plan.starts)
        self.waiting = waiting
        return plan

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        assert np.all(arrived.arrived_s <= view.now_s * (1 + 1e-12)), "shown before arriving"
        assert np.all(arrived.base_version <= view.version)
        counts = np.bincount(arrived.client, minlength=len(view.waiting))
        assert np.array_equal(view.waiting, counts), "waiting is not what waits"
        assert not len(view.freed)
        merge = self.strategy.merge(view, arrived)
        for update in merge.updates.tolist():
            assert update not in self.seen, "merged twice"
            self.seen[update] = view.round
        return merge

    def state(self) -> dict[str, Any]:
        return self.strategy.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.strategy.restore(state)
