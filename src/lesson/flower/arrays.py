"""Conversion of a model between Flower's arrays by name and the vector that the server aggregates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from lesson.clock.rejections import WRONG_TYPE
from lesson.learn.guards import InvalidUpdateError, check_names, check_shape, check_values

Vector = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Layout:
    """Names, shapes and types of a model's arrays, in the order in which a vector holds them."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[np.dtype[np.generic], ...]
    precise: bool = False
    """Whether a vector needs float64: the model has float64 arrays, or integers of magnitude 2²⁴ or more."""

    @classmethod
    def of(cls, record: ArrayRecord) -> "Layout":
        """Return the layout of a model."""
        arrays = [array.numpy() for array in record.values()]
        shapes, types = tuple(array.shape for array in arrays), tuple(array.dtype for array in arrays)
        large = any(array.dtype.kind in "iu" and array.size and np.abs(array).max() >= 2**24 for array in arrays)
        return cls(tuple(record), shapes, types, large or np.dtype(np.float64) in types)

    @property
    def sizes(self) -> list[int]:
        """Number of values of each array."""
        return [math.prod(shape) for shape in self.shapes]

    def only(self, names: Sequence[str]) -> "Layout":
        """Return the layout of some of the arrays."""
        places = [self.names.index(name) for name in names]
        shapes, types = tuple(self.shapes[place] for place in places), tuple(self.types[place] for place in places)
        return Layout(tuple(names), shapes, types, self.precise)

    def vector(self, record: ArrayRecord) -> Vector:
        """Return all values as one vector, float64 if `precise`, else float32.

        Raises InvalidUpdateError if names or shapes differ from the layout, or if a value is not a finite number.
        """
        check_names(list(record), self.names)
        kind = np.float64 if self.precise else np.float32
        parts: list[Vector] = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            values = _values(name, record[name])
            check_shape(name, values.shape, shape)
            parts.append(check_values(name, values, kind))
        return np.concatenate(parts) if parts else np.empty(0, dtype=kind)

    def record(self, vector: Vector) -> ArrayRecord:
        """Return the arrays of a vector; values of integer arrays, such as counters, are rounded."""
        parts = np.split(vector, np.cumsum(self.sizes)[:-1])
        arrays = {}
        for name, shape, kind, part in zip(self.names, self.shapes, self.types, parts, strict=True):
            values = part if kind.kind == "f" else np.rint(part)
            arrays[name] = Array(values.reshape(shape).astype(kind, order="C"))
        return ArrayRecord(arrays)


def num_bytes(record: ArrayRecord) -> int:
    """Return the size of a model's arrays as they are sent, including their headers."""
    return sum(len(array.data) for array in record.values())


def _values(name: str, array: Array) -> npt.NDArray[Any]:
    """Return the values of an array; raise InvalidUpdateError if a client's bytes are not an array."""
    try:
        values: object = array.numpy()  # never unpickles
    except Exception as error:
        why = str(error).partition(". ")[0]  # the rest explains how to load untrusted files anyway
        raise InvalidUpdateError(WRONG_TYPE, f"'{name}' cannot be read: {why}") from None
    if not isinstance(values, np.ndarray):  # NumPy opens the bytes of an .npz file as an archive
        raise InvalidUpdateError(WRONG_TYPE, f"'{name}' must be an array, got {type(values).__name__}")
    return values
