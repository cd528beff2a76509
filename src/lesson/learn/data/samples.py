"""Training and test samples as arrays, with the clients that hold them where the data say so."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import IntArray


@dataclass(frozen=True, eq=False)
class Samples:
    """What a reader of data returns. Inputs and targets have one row per sample.

    Attributes:
        train_inputs: Training inputs, such as bytes of images, tokens or features.
        train_targets: Training targets as integers from 0.
        test_inputs: Test inputs, of the same type.
        test_targets: Test targets, of the same type.
        clients: For each client, the indices of its training samples; None if the data do not name clients.
        class_names: Name of each class, in the order of the targets.
    """

    train_inputs: npt.NDArray[Any]
    train_targets: IntArray
    test_inputs: npt.NDArray[Any]
    test_targets: IntArray
    clients: list[IntArray] | None
    class_names: tuple[str, ...]


def consecutive(sizes: list[int]) -> list[IntArray]:
    """Return the indices of clients whose samples follow one another, given the number of samples of each."""
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
