"""Settings that are checked when they are made, with errors of one line."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from lesson.errors import InputError, unknown


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
