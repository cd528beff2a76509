"""A model as Flower sends it, arrays by name, and as the server merges it, one vector."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

Vector = npt.NDArray[np.floating]


class UnfitError(Exception):
    """What a client sent cannot be merged: the kind of fault, and what exactly is wrong."""

    def __init__(self, fault: str, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault, self.detail = fault, detail


@dataclass(frozen=True)
class Layout:
    """Names, shapes and types of a model's arrays, in their order in a vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[np.dtype[np.generic], ...]
    precise: bool = False
    """Whether a vector needs 64 bits: some values have them, or are whole numbers that 32 do not hold."""

    @classmethod
    def of(cls, record: ArrayRecord) -> "Layout":
        """The layout of a model."""
        arrays = [array.numpy() for array in record.values()]
        shapes, types = tuple(array.shape for array in arrays), tuple(array.dtype for array in arrays)
        large = any(array.dtype.kind in "iu" and array.size and np.abs(array).max() >= 2**24 for array in arrays)
        return cls(tuple(record), shapes, types, large or np.dtype(np.float64) in types)

    def vector(self, record: ArrayRecord) -> Vector:
        """All values one after the other, as 32-bit numbers unless some have 64; UnfitError if they are not such."""
        if set(record) != set(self.names):
            (other, *_) = sorted(set(record) ^ set(self.names))
            raise UnfitError("wrong arrays", f"'{other}' is {'new' if other in record else 'missing'}")
        kind = np.float64 if self.precise else np.float32
        parts: list[Vector] = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            try:
                values = record[name].numpy()
            except Exception as error:  # whatever bytes a client calls an array
                raise UnfitError("wrong type", f"'{name}' cannot be read: {error}") from None
            if values.shape != shape:
                raise UnfitError("wrong shape", f"'{name}' has {values.shape}, not {shape}")
            if values.dtype.kind not in "fiub":
                raise UnfitError("wrong type", f"'{name}' has {values.dtype}")
            with np.errstate(over="ignore"):  # a client may answer in 64 bits what 32 do not hold
                parts.append(values.reshape(-1).astype(kind))
            if not np.isfinite(parts[-1]).all():
                raise UnfitError("not finite", f"'{name}' has values that are no numbers")
        return np.concatenate(parts)

    def record(self, vector: Vector) -> ArrayRecord:
        """The arrays of a vector; whole numbers, such as counters, are rounded."""
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        parts = np.split(vector, np.cumsum(sizes)[:-1])
        arrays = {}
        for name, shape, kind, part in zip(self.names, self.shapes, self.types, parts, strict=True):
            values = part if kind.kind == "f" else np.rint(part)
            arrays[name] = Array(values.reshape(shape).astype(kind, order="C"))
        return ArrayRecord(arrays)
