"""State of objects as JSON values and arrays, for checkpoints.

What is saved of an object:
- if its class has an attribute SAVED: the attributes that it names;
- if it has methods `state` and `restore`: what `state()` returns, which is passed to `restore`;
- otherwise: all its attributes, without fields of a dataclass that are marked by `field(metadata={"cache": True})`.

Values may be None, text, numbers, arrays of numbers, lists, tuples, sets, dicts and objects. They are restored with the
same types and bits. Attributes that are functions, classes or other callables do not belong to the state.
"""

import dataclasses
import math
import sys
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.core.errors import InputError

Arrays = dict[str, npt.NDArray[Any]]
_COLLECTIONS = {"tuple": tuple, "set": set, "frozenset": frozenset}


def state_of(thing: object) -> tuple[dict[str, Any], Arrays]:
    """Return a copy of an object's state: values that strict JSON can represent, and arrays by name."""
    arrays: Arrays = {}
    values: dict[str, Any] = _save(thing, "", arrays)
    return values, arrays


def restore_state(thing: object, values: dict[str, Any], arrays: Arrays) -> None:
    """Restore what `state_of` returned. Arrays whose shape has not changed are overwritten in place."""
    _load(values | {"class": _class_name(thing)} if "class" in values else values, arrays, thing)


def _save(value: Any, name: str, arrays: Arrays) -> Any:
    """Return a value as JSON can represent it; its arrays go to `arrays`, under names that begin with `name`."""
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        saved = value
    elif kind is float:
        saved = {"float": repr(value)}
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        arrays[name] = np.array(value, ndmin=1)
        saved = {"array" if value.ndim else "scalar": name}
    elif kind is list:
        saved = [_save(one, f"{name}.{place}", arrays) for place, one in enumerate(value)]
    elif kind is dict:
        names = [f"{name}.{key if isinstance(key, str) else place}" for place, key in enumerate(value)]
        items = zip(names, value.items(), strict=True)
        saved = {"dict": [[_save(key, one, arrays), _save(content, one, arrays)] for one, (key, content) in items]}
    elif kind.__name__ in _COLLECTIONS:
        saved = {kind.__name__: _save(list(value) if kind is tuple else sorted(value, key=repr), name, arrays)}
    elif not hasattr(kind, "SAVED") and hasattr(kind, "state") and hasattr(kind, "restore"):
        saved = {"own": _save(value.state(), name, arrays)}
    else:
        fields = {one: getattr(value, one) for one in _names(value, name)}
        kept = {one: field for one, field in fields.items() if not callable(field)}
        fields = {one: _save(field, f"{name}.{one}".removeprefix("."), arrays) for one, field in kept.items()}
        saved = {"class": _class_name(value), "fields": fields}
    return saved


def _names(value: Any, name: str) -> list[str]:
    """Return the names of an object's attributes that are saved."""
    if hasattr(value, "SAVED") or hasattr(value, "_fields"):  # named tuples have _fields
        return list(value.SAVED if hasattr(value, "SAVED") else value._fields)
    fields = {field.name: field for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else {}
    if not fields and (not hasattr(value, "__dict__") or hasattr(value, "__array__")):
        remedy = 'mark its field with metadata={"cache": True}, or write methods state and restore'
        raise InputError(f"a checkpoint cannot hold {name}, got {value!r:.80}; {remedy}")
    caches = {name for name, field in fields.items() if field.metadata.get("cache")}
    return [one for one in getattr(value, "__dict__", fields) if one not in caches]


def _load(value: Any, arrays: Arrays, before: Any) -> Any:
    """Return what `_save` was given. `before` is the present value: its objects and arrays are restored in place."""
    match value:
        case list():
            value = [_load(one, arrays, None) for one in value]
        case {"float": text}:
            value = float(text)
        case {"scalar": name}:
            value = arrays[name][0]
        case {"array": name}:
            value, fits = arrays[name], isinstance(before, np.ndarray) and before.flags.writeable
            if fits and (before.shape, before.dtype) == (value.shape, value.dtype):
                before[:] = value
                return before
            value = value.copy()
        case {"dict": items}:
            pairs = [(_load(key, arrays, None), one) for key, one in items]
            present = before if isinstance(before, dict) else {}
            value = {key: _load(one, arrays, present.get(key)) for key, one in pairs}
        case {"own": state}:
            before.restore(_load(state, arrays, None))
            value = before
        case {"class": name, "fields": fields}:
            value = _load_object(name, fields, arrays, before)
        case dict():
            ((name, items),) = value.items()
            value = _COLLECTIONS[name](_load(items, arrays, None))
    return value


def _load_object(name: str, fields: dict[str, Any], arrays: Arrays, before: Any) -> Any:
    """Return an object of a class with these fields: `before`, if it is one that can be changed, or a new one."""
    frozen = isinstance(before, tuple) or getattr(getattr(before, "__dataclass_params__", None), "frozen", False)
    if name != _class_name(before) or frozen:
        kind = attrgetter(name.partition(":")[2])(sys.modules[name.partition(":")[0]])
        if issubclass(kind, tuple):
            return kind(*(_load(field, arrays, None) for field in fields.values()))
        before = kind.__new__(kind)
    for one, field in fields.items():
        present = getattr(before, one, None)
        if (now := _load(field, arrays, present)) is not present:
            object.__setattr__(before, one, now)  # frozen dataclasses, too
    return before


def _class_name(thing: object) -> str:
    return f"{type(thing).__module__}:{type(thing).__qualname__}"
