"""A custom strategy in its own file, compared with LESSON and FedAvg: `python examples/new_strategy.py`.

Quorum starts every idle client, closes a round when updates of half of the clients have arrived, and aggregates all
updates that have arrived, with smaller weights for stale ones. Prints a table after 15 s on two cores, or sooner with
--quick. The same on the command line, in this folder:

    lesson compare --strategies lesson,fedavg,new_strategy:Quorum

`lesson.testing.check_strategy(Quorum)` tests the strategy; docs/how-to/extend.md describes what the test covers.
"""

import sys
import tempfile
from dataclasses import dataclass

import numpy as np

import lesson
from lesson import Arrivals, CheckedOptions, Merge, RoundPlan, ServerView, Updates


@dataclass
class Quorum(CheckedOptions):
    """Closes a round when updates of a given share of the connected clients have arrived."""

    share: float = 0.5

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        quorum = max(1, round(self.share * view.num_connected))
        return RoundPlan(starts=np.flatnonzero(view.idle), closes=Arrivals(quorum))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        staleness = view.version - arrived.base_version
        weights = view.client_weight[arrived.client] / (1 + staleness)
        return Merge(arrived.id, weights / max(weights.sum(), 1e-9))


if __name__ == "__main__":
    time_budget_s, num_seeds = (100.0, 1) if "--quick" in sys.argv else (1000.0, 2)
    settings = lesson.Settings(num_clients=20, time_budget_s=time_budget_s, device="cpu")
    strategies = ["lesson", "fedavg", "new_strategy:Quorum"]
    with tempfile.TemporaryDirectory() as out:
        study = lesson.compare(strategies, settings=settings, num_seeds=num_seeds, out=out, num_processes=num_seeds)
        print(study.table()[["accuracy_last10", "uploads"]].round(3))
