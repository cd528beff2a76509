"""The strategies by name. Adding one: write its file, add a line here."""

from lesson.errors import unknown
from lesson.strategies.base import Strategy
from lesson.strategies.fedavg import FedAvg
from lesson.strategies.fedcs import FedCS
from lesson.strategies.lesson import Lesson

STRATEGIES: dict[str, type[Strategy]] = {"fedavg": FedAvg, "fedcs": FedCS, "lesson": Lesson}


def find_strategy(name: str) -> type[Strategy]:
    """The class registered under a name."""
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    return STRATEGIES[name]


__all__ = ["STRATEGIES", "FedAvg", "FedCS", "Lesson", "Strategy", "find_strategy"]
