"""Training and test samples as arrays, with the samples of each client if the data set has a natural split."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of a data set. Inputs and targets have one row per sample.

    Attributes:
        train_inputs: Training inputs: tokens, features, or bytes of images, shape (num, channels, height, width).
        train_targets: Training targets as integers from 0.
        test_inputs: Test inputs, of the same type.
        test_targets: Test targets, of the same type.
        clients: For each client, the indices of its training samples; None without a natural split.
        class_names: Name of each class, in the order of the targets; empty if they have none.
    """

    train_inputs: npt.NDArray[Any]
    train_targets: IntArray
    test_inputs: npt.NDArray[Any]
    test_targets: IntArray
    clients: list[IntArray] | None = None
    class_names: tuple[str, ...] = ()


def consecutive(sizes: list[int]) -> list[IntArray]:
    """Return the indices of each client's samples, given the number of samples of each; clients are in order."""
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def read_verified(path: Path, sha256: str, name: str) -> bytes:
    """Return the content of a file that `lesson data NAME` downloads; raise InputError unless it has this SHA-256."""
    remedy = f"run 'lesson data {name}' to download it"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; {remedy}, or set LESSON_DATA_DIR to its folder") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; {remedy} again") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(f"{path} is damaged: its SHA-256 is not the official one; {remedy} again")
    return content
