"""Entry points to simulated time: `simulate` yields the records of a run, `make_loop` returns its round loop."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from lesson.clock.loop import RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.worlds import make_world
from lesson.core.errors import InputError
from lesson.core.validation import Count, PositiveOrInf, check_value, shown
from lesson.fleet.allocation import find_allocation
from lesson.fleet.fleet import Fleet
from lesson.settings.settings import Settings
from lesson.strategies.base import Strategy


def make_loop(
    strategy: Strategy,
    fleet: Fleet,
    *,
    seed: int = 0,
    settings: Settings | None = None,
) -> RoundLoop:
    """Return the round loop of a strategy and a fleet in simulated time; its method `step` runs one round.

    The loop simulates only the timing. To train models, call `begin` and `close` instead of `step`, and aggregate the
    updates in between.

    Args:
        strategy: Strategy object, such as `Lesson(20.0)`. The loop works on a copy of it.
        fleet: Clients with their latencies, from `draw_fleet` or `read_fleet`.
        seed: Random seed of the strategy's choices and of varying times.
        settings: May make times vary, disconnect clients and exclude those whose updates are rejected. By default,
            every update takes exactly its client's latency in the fleet.

    Raises:
        InputError: An argument is invalid.
    """
    _check_objects(strategy, fleet, settings)
    settings = settings or Settings()
    allocate = find_allocation(settings.radio.allocation)
    if allocate is not None and fleet.link is None:
        raise InputError("[radio] allocation needs drawn clients with positions, but this fleet has measured times")
    world, after = make_world(fleet, settings, seed), settings.guards.exclude_after_rejections
    budget_j = settings.fleet.energy_budget_j
    return RoundLoop(strategy, world, seed=seed, exclude_after=after, energy_budget_j=budget_j, allocate=allocate)


def simulate(
    strategy: Strategy,
    fleet: Fleet,
    *,
    rounds: int | None = None,
    until_s: float = np.inf,
    seed: int = 0,
    settings: Settings | None = None,
) -> Iterator[RoundRecord]:
    """Simulate the timing of a strategy without training, and return an iterator over the records of its rounds.

    Args:
        strategy: Strategy object, such as `Lesson(20.0)`. The simulation works on a copy of it.
        fleet: Clients with their latencies, from `draw_fleet` or `read_fleet`.
        rounds: Maximum number of rounds; None for no limit. There are fewer if the run ends early.
        until_s: Simulated time in seconds by which all rounds must have closed; inf for no limit.
        seed: Random seed of the strategy's choices and of varying times.
        settings: May make times vary and disconnect clients. By default, every update takes exactly its client's
            latency in the fleet.

    Returns:
        An iterator that simulates a round at each step.

    Raises:
        InputError: An argument is invalid, or neither `rounds` nor `until_s` is given. It is raised by the call itself.
    """
    check_value("rounds", rounds, Count | None)
    check_value("seed", seed, Annotated[int, Field(ge=0, strict=True)])
    check_value("until_s", until_s, PositiveOrInf)
    if rounds is None and until_s == np.inf:
        raise InputError("rounds or until_s must be given: otherwise the run would never end")
    return _records(make_loop(strategy, fleet, seed=seed, settings=settings), rounds, until_s)


def _check_objects(strategy: object, fleet: object, settings: object) -> None:
    """Raise unless arguments have the right types."""
    if isinstance(strategy, type):
        name = strategy.__name__
        raise InputError(f"strategy must be a strategy such as FedAvg(), got the class {name}; create an instance")
    if missing := [name for name in ("open_round", "merge", "needs") if not hasattr(strategy, name)]:
        got = f"{shown(strategy)}, which has no {missing[0]}"
        raise InputError(f"strategy must be a strategy such as FedAvg(), got {got}")
    if not isinstance(fleet, Fleet):
        raise InputError(f"fleet must be a Fleet, got {shown(fleet)}")
    if settings is not None and not isinstance(settings, Settings):
        raise InputError(f"settings must be a Settings object or None, got {shown(settings)}")


def _records(loop: RoundLoop, rounds: int | None, until_s: float) -> Iterator[RoundRecord]:
    """Yield the records. This is a separate generator so that `simulate` checks its arguments when it is called."""
    while (rounds is None or loop.round < rounds) and not loop.stop_reason:
        record = loop.step(until_s)
        if record is not None:
            yield record
