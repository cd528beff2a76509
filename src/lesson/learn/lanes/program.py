"""Programs: what a lane asks the process with the GPU to compute, in numbers only.

A vector of parameters lies in a slot, which a number denotes. A program is a list of waves. A wave trains rows, each
from the model in one slot, with its result in another one; then it executes operations in order, each of which fills
one slot; then it evaluates models on the test data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import RemoteError
from lesson.learn.scores import Score

Kind = Literal["gradients", "models"]
"""What training a row gives: the gradient of one step, summed over the row's clients, or a client's trained model."""
COLUMNS = ("client", "index", "first", "most_samples", "local_steps")
SUM = 0
"""Number of the operation that adds vectors: slot ← Σ factor · slot. Those of OPTIMIZERS follow, in its order."""
NO_SLOT = -1
SLOTS_OF_OP = ("to", "model", "m", "v", "v_max", "new_m", "new_v", "new_v_max")
NUMBERS_OF_OP = (*SLOTS_OF_OP, "kind", "end")
REALS_OF_OP = ("eta", "beta1", "beta2", "epsilon")


class Rows(NamedTuple):
    """Rows with the same number of clients; a place without a client has scale 0."""

    numbers: IntArray
    """The COLUMNS of each client, shape (5, num_rows, num_clients)."""
    scale: FloatArray
    """Weight × step size of each client for gradients, or its step size for models, shape (num_rows, num_clients)."""
    slots: IntArray
    """Slots of the model that each row starts from, and of its result, shape (2, num_rows)."""


class Operations(NamedTuple):
    """Operations in order."""

    numbers: IntArray
    """The NUMBERS_OF_OP of each operation: slots, its kind, and the end of its terms, shape (num_operations, 10)."""
    reals: FloatArray
    """The REALS_OF_OP of each operation, shape (num_operations, 4)."""
    slots: IntArray
    """Slot of each term."""
    factors: FloatArray
    """Factor of each term."""


@dataclass(eq=False)
class Wave:
    """What is trained together, and what follows from it."""

    kind: Kind
    rows: Sequence[Rows]
    operations: Operations
    scores: Sequence[int]
    """Slots of the models to evaluate."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of operations, and of their terms."""
        return len(self.operations.numbers), len(self.operations.slots)


@dataclass(eq=False)
class Program:
    """Waves in order."""

    waves: Sequence[Wave]
    num_slots: int
    """Number of slots that the lane needs."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to copy the program to another process: with two arrays instead of ten per wave."""
        arrays = [array for wave in self.waves for part in (*wave.rows, wave.operations) for array in part]
        outline = [
            (wave.kind, [rows.scale.shape for rows in wave.rows], wave.sizes, wave.scores) for wave in self.waves
        ]
        whole, real = ([one.reshape(-1) for one in arrays if one.dtype == kind] for kind in (np.int64, np.float64))
        joined = [
            np.concatenate([np.empty(0, kind), *parts]) for kind, parts in ((np.int64, whole), (np.float64, real))
        ]
        return _unpacked, (outline, self.num_slots, *joined)


def _unpacked(outline: Sequence[Any], num_slots: int, whole: IntArray, real: FloatArray) -> Program:
    """Return the program that `Program.__reduce__` has taken apart."""
    places = [0, 0]

    def take(array: Any, place: int, *shape: int) -> Any:
        begin = places[place]
        places[place] = end = begin + math.prod(shape)
        return array[begin:end].reshape(shape)

    waves = []
    for kind, shapes, (num_operations, num_terms), scores in outline:
        rows = []
        for shape in shapes:
            numbers, scale = take(whole, 0, len(COLUMNS), *shape), take(real, 1, *shape)
            rows.append(Rows(numbers, scale, take(whole, 0, 2, shape[0])))
        numbers = take(whole, 0, num_operations, len(NUMBERS_OF_OP))
        reals, slots = take(real, 1, num_operations, len(REALS_OF_OP)), take(whole, 0, num_terms)
        waves.append(Wave(kind, rows, Operations(numbers, reals, slots, take(real, 1, num_terms)), scores))
    return Program(waves, num_slots)


class Failure(NamedTuple):
    """An error in the process with the GPU. The copy of an error in another process has no cause and no traceback."""

    error: Exception
    traceback: str
    """Traceback of the exception in the user's code that led to the error; may be empty."""

    def raise_error(self) -> NoReturn:
        """Raise the error."""
        raise self.error from (RemoteError(self.traceback) if self.traceback else None)


@dataclass(eq=False)
class Outcome:
    """What the execution of a program returns."""

    finite: list[bool] = field(default_factory=list)
    """Whether the result of each operation is finite."""
    scores: list[Score | Failure] = field(default_factory=list)
    """Score of each evaluated model, or why it has none."""
