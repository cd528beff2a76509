"""Energy budgets: how much energy each client has spent, and which clients cannot afford another update."""

import numpy as np

from lesson.core.arrays import FloatArray, IntArray, distinct
from lesson.core.errors import InputError
from lesson.fleet.fleet import Fleet
from lesson.strategies.base import Updates


class EnergyBudget:
    """The energy that clients have spent in a run, of which each may spend `budget_j`."""

    SAVED = ("_spent_j", "_to_check")

    def __init__(self, fleet: Fleet, budget_j: float) -> None:
        self._budget_j, self._needed_j = budget_j, fleet.update_j("energy_budget_j")
        if not np.any(self._needed_j[fleet.reachable] <= budget_j):
            least = self._needed_j[fleet.reachable].min(initial=np.inf)
            raise InputError(
                f"[fleet] energy_budget_j must be at least {least:g}, what the least costly update needs, got "
                f"{budget_j:g}"
            )
        self._spent_j: FloatArray = np.zeros(len(fleet))
        self._to_check: list[IntArray] = [np.flatnonzero(fleet.reachable)]
        """Clients whose updates have ended since the last call of `take_exhausted`."""

    def spend(self, updates: Updates, joules: FloatArray) -> None:
        """Add the energy of updates that have ended."""
        np.add.at(self._spent_j, updates.client, joules)
        self._to_check.append(updates.client)

    def take_exhausted(self) -> IntArray:
        """Return the clients, once each, whose budget does not suffice for another usual update, sorted."""
        clients = distinct(self._to_check)
        self._to_check.clear()
        return clients[self._spent_j[clients] + self._needed_j[clients] > self._budget_j * (1 + 1e-9)]
