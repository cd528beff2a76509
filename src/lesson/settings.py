"""Settings from a preset or a TOML file, with single values changed on the command line."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lesson.errors import InputError, unknown
from lesson.scenario import PRESETS, Scenario

SECTIONS = ("scenario",)


def load_scenario(source: str, changes: Sequence[str] = (), **flags: Any) -> Scenario:
    """The scenario of a preset's name or of a TOML file with a table [scenario].

    Changes are `section.key=value`; flags are values of the scenario that win over both where they are not None.
    """
    if source in PRESETS:
        sections: dict[str, dict[str, Any]] = {"scenario": {"preset": source}}
    else:
        sections = _read_sections(source)
        try:
            Scenario(**sections.get("scenario", {}))
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    for change in changes:
        section, key, value = _parse_change(change)
        sections.setdefault(section, {})[key] = value
    given = {name: value for name, value in flags.items() if value is not None}
    return Scenario(**sections.get("scenario", {}) | given)


def _read_sections(source: str) -> dict[str, dict[str, Any]]:
    path = Path(source)
    if path.suffix != ".toml":
        raise unknown("scenario", source, [*PRESETS, "FILE.toml"])
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; scenario must be a preset ({', '.join(PRESETS)}) or a file") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # damaged TOML, bytes that are not text, numbers beyond all bounds
        reason = "not TOML in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"{path} cannot be read: {reason}") from None
    for name, values in sections.items():
        if name in SECTIONS and not isinstance(values, dict):
            raise InputError(f"{path}: {name} must be one table, written [{name}]")
        if not isinstance(values, dict):
            raise InputError(f"{path}: '{name}' must be inside a section, one of: [{'], ['.join(SECTIONS)}]")
        if name not in SECTIONS:
            raise InputError(f"{path}: {unknown('section', name, SECTIONS)}")
    return sections


def _parse_change(change: str) -> tuple[str, str, Any]:
    """Section, key and value of `section.key=value`; the value as TOML, or as text where it is not TOML."""
    name, equals, text = change.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and key):
        raise InputError(f"--set must be section.key=value, such as scenario.power_w=0.2, got '{change}'")
    if section not in SECTIONS:
        raise unknown("section", section, SECTIONS)
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    return section, key, parsed["value"] if list(parsed) == ["value"] else text.strip()
