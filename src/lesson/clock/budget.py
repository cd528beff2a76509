"""Energy budgets: how much energy each client has spent, and which clients cannot afford another update."""

import numpy as np

from lesson.clock.resources import update_j
from lesson.core.arrays import FloatArray, IntArray, distinct
from lesson.core.errors import InputError
from lesson.fleet.allocation import TOLERANCE, Resources
from lesson.fleet.fleet import Fleet
from lesson.strategies.base import Updates


class EnergyBudget:
    """The energy that clients have spent in a run, of which each may spend `budget_j`."""

    SAVED = ("_spent_j", "_to_check")

    def __init__(self, fleet: Fleet, budget_j: float) -> None:
        self._budget_j, self._fleet = budget_j, fleet
        least = fleet.update_j("energy_budget_j")[fleet.reachable].min(initial=np.inf)
        if not least <= budget_j:
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

    def take_exhausted(self, resources: Resources | None) -> IntArray:
        """Return the clients, sorted, whose updates have ended and whose budget does not suffice for another one.

        That is a usual update with the client's latest resources; `resources` are those of all clients.
        """
        clients = distinct(self._to_check)
        self._to_check.clear()
        total_j = self._spent_j[clients] + update_j(self._fleet, clients, resources)
        return clients[total_j > self._budget_j * (1 + TOLERANCE)]
