"""Helpers of the checks: fleets and situations to run in, signals, rejections, and what happened in each round."""

import csv
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lesson.clock.loop import Round, RoundLoop
from lesson.clock.rejections import NOT_FINITE, Rejection
from lesson.clock.signals import Signals
from lesson.clock.simulate import make_loop
from lesson.fleet.fleet import Fleet, draw_fleet, make_fleet
from lesson.settings.sections import FaultSettings
from lesson.settings.settings import Settings
from lesson.strategies.base import Strategy

SEED = 3
DEADLINE_S = 20.0
"""Deadline of strategies that have one. In each of the fleets below, some client meets it."""
PlainRound = dict[str, Any]
"""What happened in a round, as plain values by name."""

SIGNALS: dict[str, Callable[[int, int], Any]] = {
    "client_accuracy": lambda num_clients, version: np.append(
        np.nan, (np.arange(1.0, num_clients) * 0.37 + version * 0.11) % 1
    ),
    "update_deviation": lambda _, version: (
        lambda fresh, stale: (stale.client * 0.37 + version * 0.11) % 1 if len(fresh) else np.full(len(stale), np.nan)
    ),
    "update_loss": lambda _, version: lambda updates: 1 + (updates.client * 0.37 + version * 0.11) % 1,
}
"""Every signal that a strategy can need, made up from the number of clients and the version."""


def with_signals(loop: RoundLoop) -> RoundLoop:
    """Add made-up values of all signals that its strategy needs to a loop, and return it."""

    def value(name: str) -> Any:
        return SIGNALS[name](len(loop.fleet), loop.version)

    loop.signals = Signals({name: partial(value, name) for name in loop.strategy.needs & SIGNALS.keys()})
    return loop


def rejections_of(round: Round) -> list[Rejection]:
    """Return rejections of all updates of every fifth client, and of every other update of the client after it."""
    keys = round.updates.keys
    return [Rejection(*key, NOT_FINITE) for key in keys if key[0] % 5 == 0 or (key[0] % 5 == 1 and key[1] % 2)]


@dataclass(frozen=True, eq=False)
class Case:
    """A fleet and a situation in which strategies are run."""

    fleet_name: str
    situation: str
    fleet: Fleet
    settings: Settings = field(default_factory=Settings)

    def __str__(self) -> str:
        return f"{self.fleet_name}, {self.situation}"

    @property
    def rejects(self) -> bool:
        """Whether updates are rejected."""
        return self.situation == "rejected updates"

    @property
    def is_nominal(self) -> bool:
        """Whether nothing varies and nothing fails."""
        return self.situation == "nominal"

    def begin(self, strategy: Strategy, signals: bool = True) -> RoundLoop:
        """Return the round loop of a run."""
        loop = make_loop(strategy, self.fleet, seed=SEED, settings=self.settings)
        return with_signals(loop) if signals else loop


def default_fleets() -> dict[str, Fleet]:
    """Return small fleets in which strategies often fail; the last is larger and unequal in all respects."""
    return {
        "one client": _measured(12.0),
        "4 equal clients": _measured(15.0, 15.0, 15.0, 15.0),
        "6 unequal clients": _measured(33.0, 6.0, 18.0, np.inf, 45.0, 12.0),
        "24 drawn clients": draw_fleet(Settings(num_clients=24), seed=0),
    }


def make_cases(fleets: Mapping[str, Fleet], folder: Path) -> list[Case]:
    """Return the cases of these fleets: all of them nominal, and the largest one in the other situations, too.

    `folder` receives an input file and must exist while the cases are in use.
    """
    name, fleet = max(fleets.items(), key=lambda item: len(item[1]))
    unit_s = float(np.median(fleet.latency_s[fleet.reachable])) if fleet.reachable.any() else 1.0
    channel: dict[str, Any] = {} if fleet.population is None else {"fading": "rayleigh", "coherence_s": unit_s / 4}
    varying = Settings(slowdown=0.5, estimate_error=0.1, refresh_estimates_every_s=3 * unit_s, **channel)
    faults = FaultSettings(
        disconnect_before=0.05, disconnect_during=0.3, offline_s=1 + unit_s, detection_delay_s=3 * unit_s
    )
    presence = _write_presence(folder / "presence.csv", fleet, unit_s)
    return [
        *(Case(name, "nominal", fleet) for name, fleet in fleets.items()),
        Case(name, "varying times", fleet, varying),
        Case(name, "joining and leaving clients", fleet, Settings(presence=str(presence), slowdown=0.2)),
        # A client that disconnects and leaves may be back before the server notices that its update is lost.
        Case(name, "disconnecting clients", fleet, Settings(presence=str(presence), faults=faults)),
        Case(name, "rejected updates", fleet, Settings(exclude_after_rejections=2)),
    ]


def rounds_of(
    loop: RoundLoop, num_rounds: int, resume: Callable[[], RoundLoop] | None = None, *, rejects: bool = False
) -> Iterator[PlainRound]:
    """Run a loop and yield its rounds; fewer than `num_rounds` if the run ends.

    With `rejects`, some updates are rejected, see `rejections_of`. With `resume`, which returns new loops, the run is
    saved after every round and continues in a new loop.
    """
    while loop.round < num_rounds and not loop.stop_reason:
        if (current := loop.begin()) is not None:
            record = loop.close(current, rejections_of(current) if rejects else ())
            decided = getattr(loop.strategy, "decided", {})
            yield plain(record) | decided | {"at_server": loop.ledger.at_server.id.tolist()}
        if resume is not None:
            values, arrays = loop.state()
            loop = resume()
            loop.restore(json.loads(json.dumps(values, allow_nan=False)), arrays)


def plain(value: Any) -> Any:
    """Return a value with dictionaries and lists in place of dataclasses and arrays, so that it can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if dataclasses.is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def difference(expected: list[PlainRound], got: list[PlainRound]) -> str:
    """Return in which round and how two runs differ first, in one line; an empty string if they do not."""
    for place, (one, other) in enumerate(zip(expected, got, strict=False)):
        for name in one | other:
            there, here = repr(one.get(name)), repr(other.get(name))
            if there != here:
                return f"round {place + 1}: {name} was {_cut(there)}, then {_cut(here)}"
    if len(expected) != len(got):
        return f"round {min(len(expected), len(got)) + 1} took place in only one of two runs"
    return ""


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _measured(*latency_s: float) -> Fleet:
    """Return clients with these latencies, half of which are compute time, and with 100, 200, ... samples."""
    latencies = np.array(latency_s)
    samples = 100 * np.arange(1, len(latencies) + 1)
    return make_fleet(Settings(), range(len(latencies)), samples, latencies / 2, latencies / 2, latencies)


def _write_presence(path: Path, fleet: Fleet, unit_s: float) -> Path:
    """Write when clients are available: half of them leave and rejoin, and later none is available for a while."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["client", "from_s", "to_s"])
        for client, name in enumerate(fleet.names):
            first, second = 0.3 + client % 7 * 0.1, 4.0 + client % 7 * 0.3
            breaks = [first, first + 0.4, second, second + 2.0] if client % 2 else []
            edges = [0.0, *breaks, 10.0, 12.0 + client % 3 * 0.5, np.inf]
            rows.writerows([name, start * unit_s, end * unit_s] for start, end in zip(*[iter(edges)] * 2, strict=True))
    return path
