"""Fleets and situations in which strategies are checked, with signals and rejections."""

import csv
from collections.abc import Callable, Mapping
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


def rejections_of(round: Round) -> list[Rejection]:
    """Return rejections of all updates of every fifth client, and of every other update of the client after it."""
    keys = round.updates.keys
    return [Rejection(*key, NOT_FINITE) for key in keys if key[0] % 5 == 0 or (key[0] % 5 == 1 and key[1] % 2)]


@dataclass(frozen=True, eq=False)
class Case:
    """A fleet and a situation in which strategies are run."""

    name: str
    fleet: Fleet
    settings: Settings = field(default_factory=Settings)
    is_nominal: bool = False
    """Whether nothing varies and nothing fails."""
    rejects: bool = False
    """Whether updates are rejected; see `rejections_of`."""

    def begin(self, strategy: Strategy, signals: bool) -> RoundLoop:
        """Return the round loop of a run, with all signals that the strategy needs if `signals` is set."""
        loop = make_loop(strategy, self.fleet, seed=SEED, settings=self.settings)

        def value(name: str) -> Any:
            return SIGNALS[name](len(loop.fleet), loop.version)

        loop.signals = Signals({name: partial(value, name) for name in strategy.needs & SIGNALS.keys() if signals})
        return loop


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
        *(Case(f"{name}, nominal", fleet, is_nominal=True) for name, fleet in fleets.items()),
        Case(f"{name}, varying times", fleet, varying),
        Case(f"{name}, joining and leaving clients", fleet, Settings(presence=str(presence), slowdown=0.2)),
        # A client that disconnects and leaves may be back before the server notices that its update is lost.
        Case(f"{name}, disconnecting clients", fleet, Settings(presence=str(presence), faults=faults)),
        Case(f"{name}, rejected updates", fleet, Settings(exclude_after_rejections=2), rejects=True),
    ]


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
