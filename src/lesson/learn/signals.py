"""What a strategy may ask of a model."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


class Signals(Mapping[str, Any]):
    """Values by name, each worked out when it is looked at: most rounds look at none."""

    def __init__(self, functions: Mapping[str, Callable[[], Any]]) -> None:
        self._functions = functions

    def __getitem__(self, name: str) -> Any:
        return self._functions[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


class Confirmation:
    """How far updates from older versions go the way the model has gone since; see `ServerView.signals`."""

    def __init__(self, device: str) -> None:
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)

    def add(self, way: Tensor, moved: Tensor, weight: float) -> None:
        """Take in a cohort that counts for `weight` in all and, weighted, `moved` its models."""
        products = torch.stack([moved * way, weight * way**2])
        self.sums = self.sums + products.sum(1, dtype=torch.float64)

    def look(self) -> tuple[float, ...]:
        """The two sums, waited for."""
        return tuple(self.sums.tolist())
