"""Signals that the model server provides to strategies; see `ServerView.signals`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


class Signals(Mapping[str, Any]):
    """Values by name, each computed when it is accessed: most rounds access none."""

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
    """Sums that show how well updates from older versions agree with the change of the model since then."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)

    def add(self, way: Tensor, moved: Tensor, weight: float) -> None:
        """Add a cohort: `weight` is Σ a, `moved` is Σ a·v and `way` is d, as in `ServerView.signals`."""
        products = torch.stack([moved * way, weight * way**2])
        self.sums = self.sums + products.sum(1, dtype=torch.float64)

    def look(self) -> tuple[float, ...]:
        """Return the two sums; waits for the GPU if they are on one."""
        return tuple(self.sums.tolist())
