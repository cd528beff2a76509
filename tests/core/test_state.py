"""States of objects: all kinds of values come back with the same types and bits."""

import json
import math
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from lesson import InputError
from lesson.core.state import restore_state, state_of


@dataclass(frozen=True)
class Point:
    x: float
    y: "Point | None" = None


class Pair(NamedTuple):
    first: int
    second: np.ndarray


class Own:
    """Decides itself what is saved."""

    def __init__(self) -> None:
        self.count, self.other = 0, object()

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Decay:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


class Phase(Enum):
    FIRST = 1


class Slot:
    __slots__ = ("x",)

    def __init__(self, x: int) -> None:
        self.x = x


class MoreThanSlot(Slot):
    pass


@dataclass(slots=True)
class Slots(Slot):
    seen: set[int] = field(default_factory=set)
    cache: Any = field(default=None, metadata={"cache": True})


@dataclass
class Memo(dict[int, int]):
    hits: int = 0


class Listed:
    SAVED = ("kept",)

    def __init__(self) -> None:
        self.kept, self.other = 1, object()


@dataclass
class Everything:
    option: float = 1.0
    function: Callable[[], int] = int
    value: Any = field(default=None, init=False)
    cache: Any = field(default=None, init=False, metadata={"cache": True})


def resumed(thing: Any, other: Any) -> Any:
    values, arrays = state_of(thing)
    restore_state(other, json.loads(json.dumps(values, allow_nan=False)), arrays)
    return other


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 2**70, -0.0, 0.1, math.inf, -math.inf, "ü", [], [1, [2.0]], (), (1, (2,)), {3, 1}),
        *({1: "a", "1": (2,), (0, 1): None}, frozenset({"a"}), Point(1.0, Point(-math.inf)), {"fields": 1, "class": 2}),
        *(np.float32(0.1), np.int64(7), np.bool_(True), [np.float64(np.inf), {0: Point(2.0)}], {"dict": {"own": []}}),
    ],
    ids=repr,
)
def test_values_come_back_with_their_types(value: Any) -> None:
    thing = Everything()
    thing.value = value
    got = resumed(thing, Everything()).value
    assert (repr(got), type(got)) == (repr(value), type(value))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3)[:, ::2],
        np.array([0.1, np.nan, -np.inf]),
        np.empty(0, dtype=np.float32),
        np.array([True, False]),
    ],
    ids=repr,
)
def test_arrays_are_saved_as_arrays_and_restored_in_place(array: np.ndarray) -> None:
    thing, other = Everything(), Everything()
    thing.value, other.value = {"one": array, 2: Pair(1, array)}, {"one": np.zeros_like(array)}
    present = other.value["one"]
    values, arrays = state_of(thing)
    assert len(arrays) == 2
    restore_state(other, values, arrays)
    assert np.array_equal(other.value["one"], array, equal_nan=array.dtype.kind == "f")
    assert other.value["one"] is present
    assert type(other.value[2]) is Pair
    assert other.value[2].second.tobytes() == array.tobytes()


def test_state_is_a_copy_and_shared_values_stay_unchanged() -> None:
    origin = Point(0.0)
    thing, other = Everything(2.0), Everything()
    thing.value, thing.cache, other.value = np.zeros(2), 5, origin
    values, arrays = state_of(thing)
    thing.value[:] = 1
    restore_state(other, values, arrays)
    assert (other.value.tolist(), other.option, other.cache, origin) == ([0.0, 0.0], 2.0, None, Point(0.0))
    thing.value = Point(1.0)
    other.value = origin
    assert (resumed(thing, other).value, origin) == (Point(1.0), Point(0.0))


def test_objects_may_decide_what_is_saved() -> None:
    thing, other = Everything(), Everything()
    thing.value, other.value = {"own": Own(), "listed": Listed()}, {"own": Own(), "listed": Listed()}
    thing.value["own"].count = thing.value["listed"].kept = 7
    got = resumed(thing, other).value
    assert (got["own"].count, got["listed"].kept) == (7, 7)


def test_objects_in_lists_restore_themselves() -> None:
    thing, other = Everything(), Everything()
    thing.value, other.value = [Own(), Own()], [Own()]
    thing.value[1].count = 7
    first = other.value[0]
    got = resumed(thing, other).value
    assert [one.count for one in got] == [0, 7]
    assert got[0] is first


def test_array_that_two_attributes_begin_with_is_restored_for_each() -> None:
    thing, other = Everything(), Everything()
    thing.value, other.value = {"one": np.zeros(2), "two": np.ones(2)}, dict.fromkeys(("one", "two"), np.full(2, 5.0))
    got = resumed(thing, other).value
    assert (got["one"].tolist(), got["two"].tolist()) == ([0.0, 0.0], [1.0, 1.0])


@pytest.mark.parametrize("slot", [Slot(3), MoreThanSlot(3)], ids=["slots", "slots of a base"])
def test_attributes_in_slots_are_saved(slot: Slot) -> None:
    thing = Everything()
    thing.value = slot
    got = resumed(thing, Everything()).value
    assert (type(got), got.x) == (type(slot), 3)


def test_dataclass_with_slots_is_saved_without_its_cache() -> None:
    thing = Slots({1, 2}, cache=object())
    thing.x = 5
    got = resumed(thing, Slots())
    assert (got.x, got.seen, got.cache) == (5, {1, 2}, None)


def test_functions_are_left_out_but_not_objects_that_can_be_called() -> None:
    thing, other = Everything(), Everything(function=partial(int, "3"))
    thing.value, other.value = Decay(), Decay()
    thing.value()
    got = resumed(thing, other)
    assert (got.value.count, got.function()) == (1, 3)
    for function in (np.exp, len, Decay, lambda: 1, partial(int, 1), thing.value.__call__):
        thing.value = function
        assert "value" not in state_of(thing)[0]["content"]


def test_class_of_a_function_is_an_error_where_it_cannot_be_found_again() -> None:
    @dataclass
    class Local:
        x: int = 1

    thing, other = Everything(), Everything()
    thing.value, other.value = Local(2), Local()
    assert resumed(thing, other).value == Local(2)
    thing.value = [Local()]
    with pytest.raises(InputError, match=r"cannot hold value\.0: define its class Local outside of functions"):
        state_of(thing)


def test_value_that_cannot_be_saved_is_an_error() -> None:
    thing = Everything()
    generators = np.random.default_rng(0), random.Random(0)
    for value in (np.array(["text"]), *generators, object(), Counter("a"), Memo(), Phase.FIRST, threading.Lock()):
        thing.value = [value]
        with pytest.raises(InputError, match=r"cannot hold value\.0, got "):
            state_of(thing)
    thing.value = [thing]
    with pytest.raises(InputError, match="cannot hold Everything: a value in it contains itself"):
        state_of(thing)
