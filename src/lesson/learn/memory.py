"""Where vectors of parameters are: on a device of this process, or in another process that trains many runs."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.learn.optimizers import OPTIMIZERS, Optimizer
from lesson.learn.results import Launched


class Memory(Protocol):
    """Where the vectors of a lane are: tensors on a device, or vectors in another process that stand for tensors."""

    optimizers: Mapping[str, Optimizer]
    """The server optimizers for these vectors."""

    def put(self, arrays: Sequence[npt.NDArray[np.floating]]) -> list[Tensor]:
        """Return arrays as vectors."""
        ...

    def get(self, vectors: Sequence[Tensor]) -> list[npt.NDArray[np.floating]]:
        """Wait for the values of vectors, and return them."""
        ...

    def store(self, vector: Tensor) -> Tensor:
        """Return a vector whose value no longer depends on others."""
        ...

    def launched(self) -> Launched:
        """Return the results of a chunk, which begins now."""
        ...


class TensorMemory:
    """Vectors are tensors on a device of this process."""

    optimizers = OPTIMIZERS

    def __init__(self, device: str) -> None:
        self._device = device

    def put(self, arrays: Sequence[npt.NDArray[np.floating]]) -> list[Tensor]:
        return [torch.tensor(array, device=self._device) for array in arrays]

    def get(self, vectors: Sequence[Tensor]) -> list[npt.NDArray[np.floating]]:
        return [vector.cpu().numpy() for vector in vectors]

    def store(self, vector: Tensor) -> Tensor:
        return vector

    def launched(self) -> Launched:
        return Launched()
