"""State of objects as JSON values and arrays, for checkpoints.

What is saved of an object:
- if its class has an attribute SAVED: the attributes that it names;
- if it has methods `state` and `restore`: what `state()` returns, which is passed to `restore`;
- otherwise: all its attributes, except fields of a dataclass that are marked with `field(metadata={"cache": True})`.

Values may be None, text, numbers, arrays of numbers, lists, tuples, sets, dicts and objects. They are restored with the
same types and bits. Attributes that are functions or classes are not saved; objects with a method `__call__` are.
Objects that exist are changed in place, except frozen dataclasses and those whose class has IS_SHARED = True.
"""

import copyreg
import dataclasses
import math
from pkgutil import resolve_name
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.core.errors import InputError

Arrays = dict[str, npt.NDArray[Any]]


def state_of(thing: object) -> tuple[dict[str, Any], Arrays]:
    """Return a copy of an object's state: values that strict JSON can represent, and arrays by name."""
    arrays: Arrays = {}
    try:
        values: dict[str, Any] = _save(thing, "", arrays)
    except RecursionError:
        raise InputError(f"a checkpoint cannot hold {type(thing).__name__}: a value in it contains itself") from None
    return values, arrays


def restore_state(thing: object, values: dict[str, Any], arrays: Arrays) -> None:
    """Restore what `state_of` returned. Arrays whose shape has not changed are overwritten in place, once each."""
    _load(values, arrays, thing, set())


def _save(value: Any, name: str, arrays: Arrays) -> Any:
    """Return a value as JSON can represent it; its arrays go to `arrays`, under names that begin with `name`."""
    kind = type(value)
    content: Any
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [_save(one, f"{name}.{place}", arrays) for place, one in enumerate(value)]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        arrays[name] = np.array(value, ndmin=1)
        return {"array" if value.ndim else "scalar": name}
    if kind is float:
        content = repr(value)
    elif kind in (tuple, set, frozenset):
        content = _save(list(value) if kind is tuple else sorted(value, key=repr), name, arrays)
    elif kind is dict:
        content = _save([list(item) for item in value.items()], name, arrays)
    elif _has_own_state(kind):
        content = [_save(value.state(), name, arrays)]
    else:
        kept = {one: attribute for one, attribute in _attributes(value, name).items() if not _is_function(attribute)}
        content = {one: _save(kept[one], f"{name}.{one}".removeprefix("."), arrays) for one in kept}
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "content": content}


def _load(saved: Any, arrays: Arrays, before: Any, done: set[int]) -> Any:
    """Return the value that `_save` was given. Objects and arrays of the present value, `before`, are changed in place.

    `done` holds the ids of the arrays that were overwritten. Another attribute that refers to one of them gets a copy.
    """
    match saved:
        case list():
            present = dict(enumerate(before)) if isinstance(before, list) else {}
            return [_load(one, arrays, present.get(place), done) for place, one in enumerate(saved)]
        case {"scalar": name}:
            return arrays[name][0]
        case {"array": name}:
            array, fits = arrays[name], isinstance(before, np.ndarray) and before.flags.writeable
            if not fits or (before.shape, before.dtype) != (array.shape, array.dtype) or id(before) in done:
                return array.copy()
            before[:] = array
            done.add(id(before))
            return before
        case {"type": "builtins:dict", "content": items}:
            present = before if isinstance(before, dict) else {}
            pairs = [(_load(key, arrays, None, done), content) for key, content in items]
            return {key: _load(content, arrays, present.get(key), done) for key, content in pairs}
        case {"type": name, "content": content}:
            is_same = before is not None and name.endswith(f":{type(before).__qualname__}")
            kind: Any = type(before) if is_same else resolve_name(name)
            if isinstance(content, dict):
                return _load_object(kind, content, arrays, before if is_same else None, done)
            if not _has_own_state(kind):
                return kind(_load(content, arrays, None, done))
            restored = before if is_same else kind.__new__(kind)
            restored.restore(*_load(content, arrays, None, done))
            return restored
    return saved


def _load_object(kind: Any, attributes: dict[str, Any], arrays: Arrays, before: Any, done: set[int]) -> Any:
    """Return an object with these attributes: `before` if it exists and may be changed, otherwise a new one."""
    if issubclass(kind, tuple):
        return kind(*(_load(attribute, arrays, None, done) for attribute in attributes.values()))
    is_frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    if before is None or is_frozen or getattr(kind, "IS_SHARED", False):
        before = kind.__new__(kind)
    for name, attribute in attributes.items():
        present = getattr(before, name, None)
        if (now := _load(attribute, arrays, present, done)) is not present:
            object.__setattr__(before, name, now)  # frozen dataclasses, too
    return before


def _has_own_state(kind: type) -> bool:
    return not hasattr(kind, "SAVED") and hasattr(kind, "state") and hasattr(kind, "restore")


def _attributes(value: Any, name: str) -> dict[str, Any]:
    """Return an object's attributes that are saved; raise InputError if it cannot be saved."""
    if "<locals>" in type(value).__qualname__ and any(part.isdigit() for part in name.split(".")):  # restored by name
        class_name = type(value).__name__
        raise InputError(f"a checkpoint cannot hold {name}: define its class {class_name} outside of functions")
    if hasattr(value, "SAVED"):
        return {one: getattr(value, one) for one in value.SAVED}
    if hasattr(value, "_asdict"):  # a named tuple
        return dict(value._asdict())
    try:
        create, arguments, _, *items = value.__reduce_ex__(4)  # pickle knows whether there is more than attributes
        is_plain = create is copyreg.__newobj__ and arguments == (type(value),) and items == [None, None]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        is_plain = False
    state = object.__getstate__(value)
    if not is_plain or state is None:  # an Enum, a Counter or a random generator, for example
        remedy = 'mark its field with metadata={"cache": True}, or define methods state and restore'
        raise InputError(f"a checkpoint cannot hold {name}, got {value!r:.80}; {remedy}")
    in_dict, in_slots = state if isinstance(state, tuple) else (state, {})
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    caches = {field.name for field in fields if field.metadata.get("cache")}
    return {one: attribute for one, attribute in {**(in_dict or {}), **in_slots}.items() if one not in caches}


def _is_function(value: Any) -> bool:
    """Return whether a value is a function or a class, rather than an object with attributes and a method __call__."""
    return callable(value) and (isinstance(value, type) or not isinstance(type(value).__call__, FunctionType))
