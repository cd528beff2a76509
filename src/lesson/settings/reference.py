"""Descriptions of all settings as text, for the documentation and for `lesson settings`."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from lesson.core.errors import unknown
from lesson.core.validation import CheckedArguments, arguments_of, descriptions_of
from lesson.settings.presets import PRESETS
from lesson.settings.settings import KINDS, NAMES, SECTIONS, Settings, placed, section_of

_UNITS = {
    "bits": "bit",
    "bps": "bit/s",
    "db": "dB",
    "dbm": "dBm",
    "ghz": "GHz",
    "hz": "Hz",
    "km": "km",
    "mps": "m/s",
    "s": "s",
    "w": "W",
}
"""Unit by the last part of a setting's name."""
_KINDS = {
    "array": "list",
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "object": "table",
    "string": "text",
}
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}


@dataclass(frozen=True)
class Description:
    """What a user should know about a setting, as text."""

    section: str
    """Empty for `preset`, which is in no section."""
    name: str
    meaning: str
    unit: str
    """Empty if the setting is dimensionless."""
    default: str
    """Empty if the setting has no value unless one is given."""
    presets: dict[str, str]
    """Defaults in other presets than `released`, by preset; only those that differ."""
    allowed: str
    """Type and bounds, or the possible values."""

    @property
    def full_name(self) -> str:
        """The name with its section."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def example(self) -> str:
        """An argument of `--set`, with the default value or, if there is none, a placeholder."""
        change = f"{self.full_name}={self.default or 'VALUE'}"
        return f"'{change}'" if "[" in change else change


def describe(section: str, name: str) -> Description:
    """Return the description of a setting; `preset` is in the section ""."""
    defaults = {
        one: as_text(getattr(getattr(Settings(preset=one), section) if section else Settings(), name))
        for one in PRESETS
    }
    default = defaults.pop("released")
    kind = KINDS[section] if section else Settings
    return Description(
        section=section,
        name=name,
        meaning=kind.model_fields[name].description or "",
        unit=_unit(name),
        default=default,
        presets={one: value for one, value in defaults.items() if value != default},
        allowed=_allowed_values(kind, name) if section else ", ".join(PRESETS),
    )


def describe_options(kind: Any) -> list[Description]:
    """Return the descriptions of the options of a strategy; allowed values only if it derives from CheckedOptions."""
    meanings, described = descriptions_of(kind), list[Description]()
    checked = arguments_of(kind) if issubclass(kind, CheckedArguments) else None
    for option in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if option.init:
            default = "" if option.default is dataclasses.MISSING else as_text(option.default)
            allowed = _allowed_values(checked, option.name) if checked else ""
            meaning = meanings.get(option.name, "")
            described.append(Description("strategy", option.name, meaning, _unit(option.name), default, {}, allowed))
    return described


def describe_section(section: str) -> list[Description]:
    """Return the descriptions of a section's settings, in the order of the settings file."""
    return [describe(section, name) for name in KINDS[section].model_fields]


def find_descriptions(name: str) -> list[Description]:
    """Return the settings called `name`, `section.name` or, given a section, all of its settings; raise if none is."""
    if name in SECTIONS:
        return describe_section(name)
    if name == "preset":
        return [describe("", name)]
    if "." not in name:
        return [describe(one, name) for one in NAMES.get(name) or (section_of(name),)]
    section, key = placed(name)
    if key not in KINDS[section].model_fields:
        raise unknown("setting", key, KINDS[section].model_fields, section=section)
    return [describe(section, key)]


def as_text(value: Any) -> str:
    """Return a value as `--set` takes it; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(as_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _unit(name: str) -> str:
    first, *others = (_UNITS.get(part.rpartition("_")[2], "") for part in name.split("_per_"))
    return "/".join([first or "1", *filter(None, others)]) if any(others) else first if "_" in name else ""


def _allowed_values(kind: type[BaseModel], name: str) -> str:
    """Return which values a field may have, in words."""
    has_inf = any(getattr(one, "allow_inf_nan", False) for one in kind.model_fields[name].metadata)
    try:
        return _allowed(kind.model_json_schema()["properties"][name]) + " or inf" * has_inf
    except PydanticInvalidForJsonSchema:  # an option of a custom strategy is a function, for example
        return ""


def _allowed(schema: dict[str, Any]) -> str:
    """Return the allowed values of a JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(_allowed(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "prefixItems" in schema:
        return f"[low, high], each a {_allowed(schema['prefixItems'][0])}"
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum") or [schema["const"]]))
    kind = _KINDS.get(schema.get("type", ""), "")
    bounds = {sign: _number(schema[bound]) for bound, sign in _BOUNDS.items() if bound in schema}
    if bounds.keys() == {">=", "<="}:
        return f"{kind} from {bounds['>=']} to {bounds['<=']}"
    return f"{kind} {' and '.join(map(' '.join, bounds.items()))}".strip()


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
