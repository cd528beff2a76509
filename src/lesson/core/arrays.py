"""The NumPy array types used throughout the package, and a few array helpers that NumPy lacks."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Kind = TypeVar("Kind", bound=np.generic)

NO_CLIENTS: IntArray = np.empty(0, dtype=np.int64)
NO_CLIENTS.flags.writeable = False
_FEW = 40  # below this number of ids, Python's sets and dicts are faster than sorting an array
_MANY = 500  # from this number of ids on, a lookup table is faster than a binary search


def all_distinct(numbers: IntArray) -> bool:
    """Return whether no number occurs twice."""
    if len(numbers) < 2:
        return True
    ordered = numbers.copy()
    ordered.sort()
    return not np.count_nonzero(ordered[1:] == ordered[:-1])


def distinct(parts: list[IntArray]) -> IntArray:
    """Return the distinct numbers of these arrays, sorted; several times faster here than NumPy's own union."""
    numbers = np.concatenate([NO_CLIENTS, *parts])
    if len(numbers) < _FEW:
        return np.array(sorted(set(numbers.tolist())), dtype=np.int64)
    numbers.sort()
    is_new = np.empty(len(numbers), dtype=np.bool_)
    is_new[:1] = True
    is_new[1:] = numbers[1:] != numbers[:-1]
    return numbers[is_new]


def counted(numbers: IntArray) -> list[tuple[int, int]]:
    """Return the distinct numbers, sorted, and how often each of them occurs."""
    if len(numbers) < _FEW:
        few: dict[int, int] = {}
        for number in numbers.tolist():
            few[number] = few.get(number, 0) + 1
        return sorted(few.items())
    different, counts = np.unique(numbers, return_counts=True)
    return list(zip(different.tolist(), counts.tolist(), strict=True))


def all_within(numbers: npt.NDArray[Any], low: float, high: float) -> bool:
    """Return whether all numbers are between `low` and `high`, inclusive; false if one is NaN."""
    # argmin and argmax are faster than min and max, and return the place of a NaN.
    return not len(numbers) or (numbers.item(numbers.argmin()) >= low and numbers.item(numbers.argmax()) <= high)


def membership(ids: IntArray, wanted: IntArray) -> tuple[BoolArray, IntArray]:
    """Return a mask of the `ids` that are in `wanted`, and for those their index in `wanted`.

    Uses a lookup table if the ids are many and dense, otherwise a binary search.
    """
    if not len(wanted) or not len(ids):
        return np.zeros(len(ids), dtype=np.bool_), NO_CLIENTS
    if wanted is ids:
        return ids == ids, np.arange(len(ids))  # all true; faster than np.ones
    if len(ids) >= _MANY and (high := int(ids.max())) - (low := int(ids.min())) < 8 * len(ids):
        table = np.full(high - low + 1, len(wanted))
        near = (wanted >= low) & (wanted <= high)
        table[wanted[near] - low] = np.flatnonzero(near)
        places = np.minimum(table[ids - low], len(wanted) - 1)
    else:
        order = wanted.argsort()
        places = order.take(wanted[order].searchsorted(ids), mode="clip")
    there = wanted[places] == ids
    return there, places[there]


def with_prefix(arrays: dict[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays whose names start with `prefix`, by the remainder of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def read_only(array: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
    """Return a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view
