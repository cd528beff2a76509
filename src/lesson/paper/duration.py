"""Estimated duration of a reproduction on one H200 with five processes, from measured rates."""

from collections.abc import Iterable

from lesson.paper.items import Item, wanted_runs
from lesson.paper.scale import Scale
from lesson.settings.settings import Settings

ROUNDS_PER_S = {"mnist": 2200.0, "cifar10": 870.0}
"""Rounds per second of five processes in total, for rounds of one local step."""
FEDAVG = 1.7
"""Duration of a round of FedAvg, in which all clients train, relative to other rounds."""
STEPS_PER_EPOCH = {"mnist": 60, "cifar10": 50}
"""Minibatches of 20 samples in a client's share of the training data: 60,000 and 50,000 samples for 50 clients."""


def missing_runs(item: Item, there: Iterable[Item], scale: Scale) -> dict[str, Settings]:
    """Return the runs of an item that no item in `there` needs: their settings by name."""
    done = wanted_runs(there, scale).keys()
    return {name: settings for name, settings in wanted_runs([item], scale).items() if name not in done}


def estimated_minutes(runs: Iterable[Settings]) -> float:
    """Return the estimated duration of runs in minutes."""
    return sum(_seconds(settings) for settings in runs) / 60


def _seconds(settings: Settings) -> float:
    dataset, training = settings.data.dataset, settings.training
    rounds = settings.run.rounds or settings.run.time_budget_s / settings.strategy.deadline_s
    steps = STEPS_PER_EPOCH[dataset] * training.local_epochs if training.local_epochs else training.local_steps
    return rounds * steps / ROUNDS_PER_S[dataset] * (FEDAVG if settings.strategy.name == "fedavg" else 1)
