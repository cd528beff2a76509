"""Simulated time in which every update takes exactly as long as expected."""

from typing import Any

import numpy as np

from lesson.clock.ledger import Ledger
from lesson.clock.worlds.base import Collected, closing_time, nominal_energy_j
from lesson.core.arrays import BoolArray, FloatArray
from lesson.core.state import Arrays
from lesson.fleet.fleet import Fleet
from lesson.strategies.base import Closing, Updates


class NominalWorld:
    """A world in which updates arrive exactly as expected and all reachable clients stay connected."""

    varies = False

    def __init__(self, fleet: Fleet, overhead_s: float = 0.0) -> None:
        self.fleet, self.first_latency_s, self._overhead_s = fleet, fleet.latency_s, overhead_s
        self.connected: BoolArray = fleet.reachable

    def open(self, ledger: Ledger, round: int, now_s: float, until_s: float) -> float:  # noqa: ARG002
        """Return `now_s`, plus the overhead of an aggregation; inf if no client is connected and no update is pending.

        The first round always opens: the strategy handles a run that begins without clients.
        """
        if round == 1:
            return now_s
        return np.inf if ledger.is_deserted else now_s + self._overhead_s * ledger.version_is_new

    def start(self, updates: Updates, ledger: Ledger, now_s: float) -> FloatArray:  # noqa: ARG002
        return now_s + updates.expected_s

    def cancel(self, updates: Updates) -> None:
        """Do nothing: the ledger alone knows which updates are in flight."""

    def wait(self, closes: Closing, ledger: Ledger, now_s: float, until_s: float) -> tuple[float, str]:  # noqa: ARG002
        return closing_time(closes, ledger, now_s)

    def collect(self, due: Updates, ledger: Ledger, now_s: float) -> Collected:  # noqa: ARG002
        return Collected(due)

    def release(self, updates: Updates) -> None:
        """Do nothing: no models are held here."""

    def next_change_s(self, now_s: float) -> float:  # noqa: ARG002
        """Return inf: no client joins or leaves."""
        return np.inf

    def energy_j(self, updates: Updates, elapsed_s: FloatArray | None = None) -> FloatArray:
        return nominal_energy_j(self.fleet, updates, elapsed_s)

    def state(self, ledger: Ledger) -> tuple[dict[str, Any], Arrays]:  # noqa: ARG002
        return {}, {}

    def restore(self, values: dict[str, Any], arrays: Arrays, ledger: Ledger, now_s: float) -> None:
        """Do nothing: the world does not change."""
