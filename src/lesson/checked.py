"""Settings that are checked when they are made, with errors of one line."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lesson.errors import InputError, unknown

MAX_COUNT = 1_000_000_000
MAX_SAMPLES = 10**12
"""Samples that a client may report: the sum over a million clients still fits into 64 bits."""


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"must be [low, high] with low <= high, got [{bounds[0]}, {bounds[1]}]")
    return bounds


Positive = Annotated[float, Field(gt=0, strict=True)]
NotNegative = Annotated[float, Field(ge=0, strict=True)]
Unbounded = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=True)]
Finite = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True)]
Range = Annotated[tuple[Positive, Positive], AfterValidator(_ordered)]
CountRange = Annotated[tuple[Count, Count], AfterValidator(_ordered)]


class Checked(BaseModel):
    """Frozen settings; a wrong value raises "name must be X, got Y"."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    wanted: ClassVar[dict[str, str]] = {}
    """What a field of several types must be, in words."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(self._one_line(error)) from None

    def changed(self, *names: str) -> list[str]:
        """Those of these settings that are not what they are by default."""
        return [name for name in names if getattr(self, name) != type(self).model_fields[name].default]

    def unused(self, needed: Mapping[tuple[str, ...], tuple[bool, str]], section: str = "") -> list[str]:
        """Settings that were changed and change nothing, a line each: by whether what they go with is there, and what
        that is."""
        return [
            f"{section}{name} = {getattr(self, name)} changes nothing; it goes with {what}"
            for names, (there, what) in needed.items()
            for name in self.changed(*names)
            if not there
        ]

    @classmethod
    def _one_line(cls, error: ValidationError) -> str:
        """What pydantic found first."""
        first = error.errors(include_url=False)[0]
        kind, context, got = first["type"], first.get("ctx", {}), _shown(first["input"])
        if kind == "extra_forbidden":
            return str(unknown("setting", str(first["loc"][0]), cls.model_fields))
        name = str(first["loc"][0]) if first["loc"] else ""
        if kind == "value_error":
            return f"{name} {context['error']}".strip()
        words = {
            "greater_than": f"> {context.get('gt', 0):.10g}",
            "greater_than_equal": f">= {context.get('ge', 0):.10g}",
            "less_than": f"< {context.get('lt', 0):.10g}",
            "less_than_equal": f"<= {context.get('le', 0):.10g}",
            "finite_number": "a finite number",
            "float_type": "a number",
            "int_type": "a whole number",
            "bool_type": "true or false",
            "string_type": "text",
            "literal_error": f"{context.get('expected')}",
        }
        must_be = cls.wanted.get(name) or words.get(kind, first["msg"])
        return f"{name} must be {must_be}, got {got}"


def _shown(value: Any) -> str:
    """What was given, cut where it is long; numbers of thousands of digits cannot be printed at all."""
    text = "a huge number" if isinstance(value, int) and abs(value) > 10**100 else repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
