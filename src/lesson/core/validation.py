"""Settings that are validated on construction, with one-line errors."""

import ast
import contextlib
import dataclasses
import inspect
import os
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from lesson.core.errors import ArgumentError, InputError, unknown

MAX_COUNT = 1_000_000_000
MAX_SAMPLES = 10**12
"""Maximum number of samples a client may report: the sum over a million clients still fits into 64 bits."""

_NO_PAIR = ("tuple_type", "missing", "too_long")
"""Errors of a value that is not a pair; all tuples in settings are ranges."""


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"must be [low, high] with low <= high, got [{bounds[0]}, {bounds[1]}]")
    return bounds


Positive = Annotated[float, Field(gt=0, strict=True)]
NotNegative = Annotated[float, Field(ge=0, strict=True)]
NotNegativeOrInf = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=True)]
PositiveOrInf = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=True)]
Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
BelowOne = Annotated[float, Field(ge=0, lt=1, strict=True)]
Finite = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]
CountFromZero = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True)]
Range = Annotated[tuple[Positive, Positive], AfterValidator(_ordered)]
CountRange = Annotated[tuple[Count, Count], AfterValidator(_ordered)]


def setting(
    default: Any,
    description: str,
    *,
    requires: str | tuple[str, ...] = (),
    excludes: Mapping[str, str] | None = None,
    varies: bool = False,
) -> Any:
    """Return the field of a setting.

    Args:
        default: Value in the preset `released`.
        description: Meaning, for `lesson settings`.
        requires: Conditions without which the setting has no effect, such as "fading=rician", "shadowing_db" (it does
            not have its default), "no trace" or "times vary"; " or " separates alternatives.
        excludes: Settings with which it cannot be combined, separated by spaces, and why.
        varies: Whether it makes actual times differ from the server's estimates.
    """
    needed = (requires,) if isinstance(requires, str) else requires
    others = {name: why for names, why in (excludes or {}).items() for name in names.split()}
    rules: Any = {"requires": needed, "excludes": others, "varies": varies}
    return Field(default, description=description, json_schema_extra=rules)


class Checked(BaseModel):
    """Frozen settings; an invalid value raises InputError "name must be X, got Y"."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**{name: plain(value) for name, value in values.items()})
        except ValidationError as error:
            raise InputError(self._one_line(error)) from None

    @classmethod
    def _one_line(cls, error: ValidationError) -> str:
        """Return what is wrong with the first invalid field, in one line."""
        errors = error.errors(include_url=False)
        errors.sort(key=lambda one: one["type"] != "extra_forbidden")  # a misspelled field is also a missing one
        first, name = errors[0], str(errors[0]["loc"][0]) if errors[0]["loc"] else ""
        if first["type"] == "extra_forbidden":
            return str(unknown("setting", name, cls.model_fields))
        if first["type"] == "missing" and len(first["loc"]) == 1:
            return f"{name} is missing"
        mine = [one for one in errors if one["loc"][:1] == first["loc"][:1]]  # one for each type that it may have
        for one in mine:
            if one["type"] == "value_error":
                return f"{name} {one['ctx']['error']}".strip()
        wanted = dict.fromkeys("[low, high]" if one["type"] in _NO_PAIR else wanted_by(one) for one in mine)
        return f"{name} must be {' or '.join(wanted)}, got {shown(first['input'])}"


class CheckedArguments:
    """Base class of dataclasses whose arguments are checked by the annotations of their fields, as settings are."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        checked = arguments_of(kind)(**{name: getattr(self, name) for name in arguments_of(kind).model_fields})
        for name in arguments_of(kind).model_fields:
            object.__setattr__(self, name, getattr(checked, name))  # frozen dataclasses, too


@cache
def arguments_of(kind: Any) -> type[Checked]:
    """Return the arguments of a dataclass as settings, which check values by the annotations of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    arguments: dict[str, Any] = {
        field.name: (hints[field.name], ... if field.default is dataclasses.MISSING else field.default)
        for field in dataclasses.fields(kind)
        if field.init
    }
    model: type[Checked] = create_model(kind.__name__, __base__=Checked, **arguments)
    return model


def check_value(name: str, value: Any, kind: Any) -> None:
    """Raise ArgumentError unless a value is valid for a type such as `Positive`."""
    arguments: dict[str, Any] = {name: (kind, ...)}
    try:
        create_model(name, __base__=Checked, **arguments)(**{name: value})
    except InputError as error:
        raise ArgumentError(name, str(error).removeprefix(f"{name} ")) from None


def descriptions_of(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class and its bases, as far as its source is available."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__[:-1]):
        with contextlib.suppress(OSError):
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
            for field, text in pairwise(getattr(tree, "body", ())):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                        found[name] = " ".join(words.split())
    return found


def wanted_by(error: ErrorDetails) -> str:
    """Return what a value must be according to an error that pydantic found."""
    context = error.get("ctx", {})
    words = {
        "greater_than": f"> {context.get('gt', 0):.10g}",
        "greater_than_equal": f">= {context.get('ge', 0):.10g}",
        "less_than": f"< {context.get('lt', 0):.10g}",
        "less_than_equal": f"<= {context.get('le', 0):.10g}",
        "finite_number": "a finite number",
        "float_type": "a number",
        "float_parsing": "a number",
        "int_type": "a whole number",
        "int_parsing": "a whole number",
        "int_from_float": "a whole number",
        "bool_type": "true or false",
        "bool_parsing": "true or false",
        "string_type": "text",
        "string_too_short": "text that is not empty",
        "string_pattern_mismatch": f"text that matches {context.get('pattern')}",
        "string_too_long": f"text of at most {context.get('max_length')} characters",
        "list_type": "a list",
        "tuple_type": "a list",
        "model_type": "a JSON object",
        "literal_error": f"{context.get('expected')}",
    }
    return words.get(error["type"], error["msg"].removeprefix("Input should be "))


def plain(value: Any) -> Any:
    """Return a value with NumPy scalars and arrays as Python numbers and lists, and paths as text."""
    if isinstance(value, np.generic | np.ndarray):
        return float(value) if isinstance(value, np.longdouble) else value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return {key: plain(one) for key, one in value.items()} if type(value) is dict else value


def shown(value: Any) -> str:
    """Return a value as text of at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
