"""Programs: what a lane asks the process with the GPU to compute, in numbers only.

A vector of parameters lies in a slot, which a number denotes. A program is a list of waves. A wave trains rows, each
from the model in one slot, with its result in another one; then it executes operations in order, each of which fills
one slot; then it evaluates models on the test data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from lesson.core.arrays import FloatArray, IntArray

Kind = Literal["gradients", "models"]
"""What training a row gives: the gradient of one step, summed over the row's clients, or a client's trained model."""
COLUMNS = ("client", "index", "first", "local_steps")
SUM = 0
"""Number of the operation that adds vectors: slot ← Σ factor · slot. Those of OPTIMIZERS follow, in its order."""
NO_SLOT = -1
SLOTS_OF_OP = ("to", "model", "m", "v", "v_max", "new_m", "new_v", "new_v_max")
NUMBERS_OF_OP = (*SLOTS_OF_OP, "kind", "end")
REALS_OF_OP = ("eta", "beta1", "beta2", "epsilon")


class Rows(NamedTuple):
    """Rows with the same number of clients; a place without a client has scale 0."""

    numbers: IntArray
    """The COLUMNS of each client, shape (4, num_rows, num_clients)."""
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


NO_OPERATIONS = Operations(
    np.empty((0, len(NUMBERS_OF_OP)), dtype=np.int64),
    np.empty((0, len(REALS_OF_OP))),
    np.empty(0, dtype=np.int64),
    np.empty(0),
)


@dataclass(eq=False)
class Wave:
    """What is trained together, and what follows from it."""

    kind: Kind = "gradients"
    rows: Sequence[Rows] = ()
    operations: Operations = NO_OPERATIONS
    scores: Sequence[int] = ()
    """Slots of the models to evaluate."""


@dataclass(eq=False)
class Program:
    """Waves in order."""

    waves: Sequence[Wave]
    num_slots: int
    """Number of slots that the lane needs."""


@dataclass(eq=False)
class Outcome:
    """What the execution of a program returns."""

    finite: list[bool] = field(default_factory=list)
    """Whether the result of each operation is finite."""
    scores: list[object] = field(default_factory=list)
    """Score of each evaluated model."""
