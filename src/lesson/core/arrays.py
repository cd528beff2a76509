"""The three kinds of numpy arrays this package passes around, and what numpy lacks for them."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Kind = TypeVar("Kind", bound=np.generic)

NO_CLIENTS: IntArray = np.empty(0, dtype=np.int64)
NO_CLIENTS.flags.writeable = False


def all_distinct(numbers: IntArray) -> bool:
    """Whether no number is there twice."""
    return len(distinct([numbers])) == len(numbers)


def distinct(parts: list[IntArray]) -> IntArray:
    """Every number of these arrays once, sorted. Several times faster here than numpy's own union."""
    numbers = np.sort(np.concatenate([NO_CLIENTS, *parts]))
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])] if len(numbers) else numbers


def membership(ids: IntArray, wanted: IntArray) -> tuple[BoolArray, IntArray]:
    """Which ids are among those wanted, and the places of these there. By a table where ids lie close together."""
    if not len(wanted) or not len(ids):
        return np.zeros(len(ids), dtype=np.bool_), NO_CLIENTS
    low, high = int(ids.min()), int(ids.max())
    if high - low < 8 * len(ids):
        table = np.full(high - low + 1, len(wanted))
        near = (wanted >= low) & (wanted <= high)
        table[wanted[near] - low] = np.flatnonzero(near)
        places = np.minimum(table[ids - low], len(wanted) - 1)
    else:
        order = np.argsort(wanted)
        places = order[np.minimum(np.searchsorted(wanted[order], ids), len(wanted) - 1)]
    there = wanted[places] == ids
    return there, places[there]


def copied(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Copies of these arrays, by name."""
    return {name: array.copy() for name, array in arrays.items()}


def with_prefix(arrays: dict[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays whose name begins so, by the rest of their name."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def read_only(array: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
    """A view of an array that nobody can write to."""
    view = array.view()
    view.flags.writeable = False
    return view
