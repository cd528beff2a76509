"""Every registered strategy, set up for small fleets, and runs that keep what their strategy decided."""

from typing import Any

import numpy as np
import pytest

from helpers.scripted import Served
from lesson import Fleet, make_loop
from lesson.clock.records import RoundRecord
from lesson.strategies import CA2FL, FADAS, STRATEGIES, FedAT, FedBuff, TiFL, setting_names
from lesson.strategies.base import Merge, RoundPlan, ServerView, Updates

SMALL: dict[type[Any], dict[str, int]] = {
    CA2FL: {"buffer_size": 3, "concurrency": 2},
    FADAS: {"buffer_size": 3, "concurrency": 2},
    FedAT: {"num_tiers": 3},
    FedBuff: {"buffer_size": 3, "concurrency": 2},
    TiFL: {"num_tiers": 3},
}
"""Options of strategies whose defaults require more than three clients."""
KINDS = [*STRATEGIES.values()]
everyone = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def make(kind: type[Any]) -> Any:
    """Return a strategy with its defaults, adapted to three clients, and a deadline of 10 s if it requires one."""
    deadline = {"deadline_s": 10.0} if "deadline_s" in setting_names(kind) else {}
    return kind(**deadline, **SMALL.get(kind, {}))


class Run:
    """A simulation with its records, and the plans and merges of its strategy."""

    def __init__(self, simulation: Any, rng: Any = None) -> None:
        self.simulation, self.records = simulation, list[RoundRecord]()
        self.plans, self.merges = list[RoundPlan](), list[Merge]()
        strategy: Any = simulation.strategy
        decide, combine = strategy.open_round, strategy.merge

        def open_round(view: ServerView, given: np.random.Generator) -> RoundPlan:
            self.plans.append(decide(view, given if rng is None else rng))
            return self.plans[-1]

        def merge(view: ServerView, arrived: Updates) -> Merge:
            self.merges.append(combine(view, arrived))
            return self.merges[-1]

        strategy.open_round, strategy.merge = open_round, merge

    def step(self, rounds: int) -> "Run":
        for _ in range(rounds):
            if not self.simulation.stop_reason:
                record = self.simulation.step()
                assert record is not None
                self.records.append(record)
        return self

    @property
    def trace(self) -> list[tuple[float, list[int], list[int], list[int]]]:
        """End, starts (sorted), aggregated clients and their staleness in each round."""
        return [
            (one.end_s, sorted(one.started.tolist()), one.merged.tolist(), one.staleness.tolist())
            for one in self.records
        ]

    @property
    def rounds(self) -> list[tuple[float, list[int], list[int]]]:
        """The trace without staleness."""
        return [row[:3] for row in self.trace]


def follow(strategy: Any, fleet: Fleet, rounds: int, *, rng: Any = None, server: Any = None, **options: Any) -> Run:
    """Run a strategy on a fleet; `rng` replaces the random generator that it is given, and `server` aggregates."""
    loop: Any = make_loop(strategy, fleet, **options)
    return Run(loop if server is None else Served(loop, server), rng).step(rounds)
