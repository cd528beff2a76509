"""Checks of an uploaded model's arrays against the server's model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.clock.rejections import NOT_FINITE, WRONG_ARRAYS, WRONG_SHAPE, WRONG_TYPE
from lesson.core.errors import printable


class InvalidUpdateError(Exception):
    """An upload cannot be aggregated. `reason` is the kind of fault, `detail` says what exactly is wrong."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, printable(detail)  # includes names and types that the client chose
        super().__init__(f"{reason}: {self.detail}")


def check_names(names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise InvalidUpdateError unless an upload has exactly the arrays of the model, in any order."""
    if set(names) != set(wanted):
        (other, *_) = sorted(set(names) ^ set(wanted))
        raise InvalidUpdateError(WRONG_ARRAYS, f"{'unexpected' if other in names else 'missing'} array '{other}'")


def check_shape(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise InvalidUpdateError unless an array of an upload has the shape of the model's array."""
    if shape != wanted:
        raise InvalidUpdateError(WRONG_SHAPE, f"'{name}' has {shape}, not {wanted}")


def check_values(name: str, values: npt.NDArray[Any], kind: type[np.floating]) -> npt.NDArray[np.floating]:
    """Return the values of an array as a vector of type `kind`; raise InvalidUpdateError unless all are finite."""
    if values.dtype.kind not in "fiub":
        raise InvalidUpdateError(WRONG_TYPE, f"'{name}' has {values.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):  # a client may send 64-bit values that do not fit into 32 bits
        numbers = values.reshape(-1).astype(kind)
    if not np.isfinite(numbers).all():
        raise InvalidUpdateError(NOT_FINITE, f"'{name}' has NaN or infinite values")
    return numbers
