"""Vectors of parameters that are only named here, and computed in the process with the GPU.

`Recorder` takes the place of the tensors, the trainer and the device of a run: what the executor does to vectors and
cohorts becomes a program. A slot is free again as soon as no vector refers to it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Self, cast

import numpy as np
from torch import Tensor

from lesson.core.arrays import FloatArray, IntArray
from lesson.learn.backend import TrainerName
from lesson.learn.cohort import Cohort
from lesson.learn.lanes.program import (
    COLUMNS,
    NO_SLOT,
    NUMBERS_OF_OP,
    REALS_OF_OP,
    SLOTS_OF_OP,
    SUM,
    Kind,
    Operations,
    Program,
    Rows,
    Wave,
)
from lesson.learn.optimizers import OPTIMIZERS, Moments, Step
from lesson.settings.sections import ServerSettings

SAMPLES_PER_ROW = 100
"""Clients that start from the same model share a row up to about this number of samples."""
WORTH_A_ROW = 0.75
"""Clients that are left over share a row if they fill more than this share of it; otherwise each has one of its own."""

NO_SLOTS, NO_REALS = (NO_SLOT,) * (len(SLOTS_OF_OP) - 1), (0.0,) * len(REALS_OF_OP)
"""Arguments of a sum: all slots but its result, and all reals, are those of optimizers."""


class Slot:
    """The place of a vector in the process with the GPU."""

    __slots__ = ("_free", "number")

    def __init__(self, number: int, free: list[int]) -> None:
        self.number, self._free = number, free

    def __del__(self) -> None:
        self._free.append(self.number)


class Vector:
    """A linear combination of slots, Σ factor · slot, with the operations of a tensor that aggregation uses."""

    __slots__ = ("_operation", "length", "terms")
    is_cuda = True

    def __init__(self, terms: dict[Slot, float], length: int, operation: int | None = None) -> None:
        self.terms, self.length, self._operation = terms, length, operation

    @property
    def shape(self) -> tuple[int]:
        return (self.length,)

    def __len__(self) -> int:
        return self.length

    @property
    def slot(self) -> Slot:
        """The slot of a stored vector."""
        ((slot, _),) = self.terms.items()
        return slot

    def sum(self, **_: Any) -> int:
        """Return the number of the operation that fills this vector: its `Outcome` says whether the sum is finite."""
        assert self._operation is not None, "only a vector that has just been stored is checked"
        return self._operation

    def clone(self) -> "Vector":
        return Vector(dict(self.terms), self.length)

    def new_zeros(self, *_: Any, **__: Any) -> "Vector":
        return Vector({}, self.length)

    def __iadd__(self, other: "Vector | float") -> Self:
        return self._add(other, 1.0)

    def __isub__(self, other: "Vector | float") -> Self:
        return self._add(other, -1.0)

    def __add__(self, other: "Vector | float") -> "Vector":
        return self.clone()._add(other, 1.0)

    def __sub__(self, other: "Vector | float") -> "Vector":
        return self.clone()._add(other, -1.0)

    def __mul__(self, factor: float) -> "Vector":
        return Vector({slot: factor * one for slot, one in self.terms.items()} if factor else {}, self.length)

    __rmul__ = __mul__

    def _add(self, other: "Vector | float", sign: float) -> Self:
        """Add another vector in place; the only number that can be added is 0."""
        if not isinstance(other, Vector):
            assert other == 0, "a number is not a vector"
            return self
        for slot, factor in other.terms.items():
            total = self.terms.get(slot, 0.0) + sign * factor
            if total:
                self.terms[slot] = total
            else:  # a slot that is not finite must not matter either
                self.terms.pop(slot, None)
        return self


class Recorder:
    """Records the programs of a lane. Models are plain numbers outside: `get` and `put` of its owner transfer them."""

    def __init__(self, length: int, batch_size: int) -> None:
        self._length, self._per_row = length, clients_per_row(batch_size)
        self._free: list[int] = []
        self.num_slots = 0
        """Number of slots that have been used so far."""
        self.optimizers: Mapping[str, Callable[..., Step]] = {
            name: partial(self._optimize, number + 1) for number, name in enumerate(OPTIMIZERS)
        }
        """The server optimizers, as operations on slots."""
        self._kind: Kind = "gradients"
        self._waves, self._rows = list[Wave](), list[Rows]()
        self._scores, self._kept = list[int](), list[Vector]()
        self._numbers, self._reals = list[tuple[int, ...]](), list[tuple[float, ...]]()
        self._slots, self._factors = list[int](), list[float]()
        self._num_operations = self._num_scores = 0

    def begin_count(self) -> None:
        """Number operations and scores from 0 again."""
        self._num_operations = self._num_scores = 0

    def take_program(self) -> Program:
        """Return what has been recorded since the last call."""
        self._end_wave()
        program, self._waves = Program(self._waves, self.num_slots), []
        return program

    def new(self) -> Vector:
        """Return a vector in a slot that has not been filled yet."""
        if not self._free:
            self._free.append(self.num_slots)
            self.num_slots += 1
        return Vector({Slot(self._free.pop(), self._free): 1.0}, self._length)

    def store(self, vector: Vector) -> Vector:
        """Return a vector as one with a slot of its own."""
        return self._operation(SUM, vector)

    def score(self, model: Vector) -> int:
        """Evaluate a model, and return the number of its score."""
        self._scores.append(model.slot.number)
        self._kept.append(model)
        self._num_scores += 1
        return self._num_scores - 1

    def train(self, kind: Kind, cohorts: Sequence[Cohort]) -> list[Vector]:
        """Train cohorts as a new wave; return the weighted sum of the models of each."""
        self._end_wave()
        self._kind = kind
        if kind == "gradients":
            return self._gradients(cohorts)
        return self._models(cohorts)

    def _end_wave(self) -> None:
        """End the current wave. The slots of its rows and of models to evaluate are not given away before."""
        if not (self._rows or self._numbers or self._scores):
            return
        operations = Operations(
            np.array(self._numbers, dtype=np.int64).reshape(-1, len(NUMBERS_OF_OP)),
            np.array(self._reals).reshape(-1, len(REALS_OF_OP)),
            np.array(self._slots, dtype=np.int64),
            np.array(self._factors, dtype=np.float64),
        )
        self._waves.append(Wave(self._kind, self._rows, operations, self._scores))
        self._rows, self._scores = [], []
        self._kept.clear()
        self._numbers, self._reals, self._slots, self._factors = [], [], [], []

    def _operation(
        self, kind: int, vector: Vector, reals: tuple[float, ...] = NO_REALS, slots: tuple[int, ...] = NO_SLOTS
    ) -> Vector:
        """Record an operation on a combination of slots; return its result."""
        number, result = self._num_operations, self.new()
        self._num_operations += 1
        self._slots += [slot.number for slot in vector.terms]
        self._factors += vector.terms.values()
        self._numbers.append((result.slot.number, *slots, kind, len(self._slots)))
        self._reals.append(reals)
        return Vector(result.terms, self._length, number)

    def _optimize(
        self, kind: int, model: Vector, gradient: Vector, moments: Moments, server: ServerSettings, eta: float
    ) -> Step:
        """Record a step of a server optimizer."""
        names = ("m", "v", "v_max")
        given = cast(Mapping[str, Vector], moments)
        made = {name: self.new() for name in _moments_of(kind)}
        before = [given[name].slot.number if name in given else NO_SLOT for name in names]
        after = [made[name].slot.number if name in made else NO_SLOT for name in names]
        reals = (eta, server.beta1, server.beta2, server.epsilon)
        stepped = self._operation(kind, gradient, reals, (model.slot.number, *before, *after))
        return cast(Step, (stepped, made))

    def _gradients(self, cohorts: Sequence[Cohort]) -> list[Vector]:
        """Record one step for rows of clients: Σ a·(ω − λ·∇f) = (Σ a)·ω − ∇ Σ a·λ·f."""
        columns = [np.concatenate([getattr(cohort, name) for cohort in cohorts]) for name in COLUMNS]
        scale = np.concatenate([cohort.weight * cohort.lr for cohort in cohorts])
        sums = [cast(Vector, cohort.base) * float(cohort.weight.sum()) for cohort in cohorts]
        parts: dict[int, tuple[list[Sequence[int]], list[tuple[int, int]]]] = {}
        for (begin, end), cohort, total in zip(_bounds(cohorts), cohorts, sums, strict=True):
            base = cast(Vector, cohort.base).slot.number
            for first, last, size in _split(begin, end, self._per_row):
                result = self.new()
                total -= result
                places, slots = parts.setdefault(size, ([], []))
                places.append([*range(first, last), *[-1] * (size - last + first)])
                slots.append((base, result.slot.number))
                self._kept.append(result)
        numbers = np.stack([np.append(column, 0) for column in columns])  # the last one stands for nobody
        scale = np.append(scale, 0.0)
        for places, slots in parts.values():
            where = np.array(places)
            self._rows.append(Rows(numbers[:, where], scale[where], np.array(slots).T))
        return sums

    def _models(self, cohorts: Sequence[Cohort]) -> list[Vector]:
        """Record the training of one model per row."""
        columns = [np.concatenate([getattr(cohort, name) for cohort in cohorts]) for name in COLUMNS]
        slots, sums = list[tuple[int, int]](), list[Vector]()
        for cohort in cohorts:
            total = Vector({}, self._length)
            base = cast(Vector, cohort.base).slot.number
            for weight in cohort.weight.tolist():
                result = self.new()
                total += result * weight
                slots.append((base, result.slot.number))
                self._kept.append(result)
            sums.append(total)
        lr: FloatArray = np.concatenate([cohort.lr for cohort in cohorts])
        self._rows.append(Rows(np.stack(columns)[:, :, None], lr[:, None], np.array(slots).T))
        return sums


class RecordingTrainer:
    """Records the training of cohorts: those of one step by the gradients of rows, others by the models of clients."""

    def __init__(self, recorder: Recorder, name: TrainerName) -> None:
        self._recorder = recorder
        self._kind: Kind = "gradients" if name == "fused" else "models"

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        return cast(list[Tensor], self._recorder.train(self._kind, cohorts))

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:  # noqa: ARG002
        raise AssertionError("runs that need separate models are not lanes")

    def close(self) -> None:
        """Do nothing: the other process has all resources."""


def clients_per_row(batch_size: int) -> int:
    """Return how many clients that start from the same model share a row."""
    return max(1, SAMPLES_PER_ROW // batch_size)


def _bounds(cohorts: Sequence[Cohort]) -> Iterator[tuple[int, int]]:
    return pairwise([0, *np.cumsum([len(cohort) for cohort in cohorts]).tolist()])


def _split(begin: int, end: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the rows of a cohort: its first and last client, and the size of the row."""
    while end - begin > size * WORTH_A_ROW and size > 1:
        yield begin, min(end, begin + size), size
        begin = min(end, begin + size)
    for place in range(begin, end):
        yield place, place + 1, 1


def _moments_of(kind: int) -> tuple[str, ...]:
    name = list(OPTIMIZERS)[kind - 1]
    return {"momentum": ("m",), "amsgrad": ("m", "v", "v_max")}.get(name, ("m", "v"))


def slots_of(vectors: Sequence[Tensor]) -> IntArray:
    """Return the slots of stored vectors."""
    return np.array([cast(Vector, vector).slot.number for vector in vectors], dtype=np.int64)
