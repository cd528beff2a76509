"""What anything that divides data among clients can be asked."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from lesson.core.arrays import IntArray

Lookup = Callable[[Tensor, Tensor], Tensor]


class Holdings(Protocol):
    """Which samples each client holds."""

    @property
    def num_samples(self) -> IntArray:
        """Samples of each client, (num_clients,)."""
        ...

    def __getitem__(self, client: int) -> IntArray:
        """The samples of one client."""
        ...

    def lookup(self, device: str) -> Lookup:
        """A function on a device: the samples at these positions among those of these clients."""
        ...
