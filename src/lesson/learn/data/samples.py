"""Training and test samples as arrays, with the samples of each client if the data set has a natural split."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import IntArray


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of a data set. Inputs and targets have one row per sample.

    Attributes:
        train_inputs: Training inputs, such as bytes of images, tokens or features.
        train_targets: Training targets as integers from 0.
        test_inputs: Test inputs, of the same type.
        test_targets: Test targets, of the same type.
        clients: For each client, the indices of its training samples; None without a natural split.
        class_names: Name of each class, in the order of the targets.
    """

    train_inputs: npt.NDArray[Any]
    train_targets: IntArray
    test_inputs: npt.NDArray[Any]
    test_targets: IntArray
    clients: list[IntArray] | None
    class_names: tuple[str, ...]


def consecutive(sizes: list[int]) -> list[IntArray]:
    """Return the indices of each client's samples, given the number of samples of each; clients are in order."""
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
