"""Settings from a preset or a TOML file, changed by `--set` and by flags."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lesson.core.errors import InputError, unknown
from lesson.core.toml import read_toml
from lesson.core.version import check_format
from lesson.settings.presets import PRESETS
from lesson.settings.settings import SECTIONS, Settings, section_of, without_none

FORMAT = 3
"""Version of the names in a settings file that a run wrote."""

Tables = dict[str, Any]
"""Tables of plain values by section, and perhaps `preset`."""


def load_settings(source: Path | str, changes: Sequence[str] = (), flags: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of a preset or of a TOML file.

    Args:
        source: "released", "printed", "phones", "chen" or a TOML file, such as the config.toml of a run.
        changes: Changes of single settings as `section.key=value`, or `key=value` for a unique name; the last one wins.
        flags: Values by `section.key` that override the changes; those that are None are ignored.

    Raises:
        InputError: The file cannot be read, or a setting is unknown or invalid.
    """
    source = str(source)
    if source in PRESETS:
        tables: Tables = {"preset": source}
    else:
        tables = _read_settings(source)
        try:
            Settings(**tables)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    apply_changes(tables, changes)
    given = without_none(flags or {})
    for name, value in given.items():
        section, _, key = name.partition(".")
        tables.setdefault(section, {})[key] = value
    if "derived" in tables:
        tables["derived"] = [key for key in tables["derived"] if key not in {*changed_keys(changes), *given}]
    return Settings(**tables)


def apply_changes(tables: Tables, changes: Sequence[str], allowed: Sequence[str] = SECTIONS) -> None:
    """Put `section.key=value` or `key=value` into tables of plain values."""
    for change in changes:
        section, key, value = _parse_change(change, allowed)
        if (section, key) == ("", "preset"):
            tables[key] = value
        else:
            tables.setdefault(section, {})[key] = value


def changed_keys(changes: Sequence[str]) -> list[str]:
    """Return the `section.key` of each change."""
    return [f"{section}.{key}" for section, key, _ in map(_parse_change, changes)]


def check_set_once(changes: Sequence[str], flags: Mapping[str, Any] | None = None) -> None:
    """Raise if a command line gives a setting twice, by --set or by a flag."""
    names = [*changed_keys(changes), *without_none(flags or {})]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} must be set only once, with --set or with its own option")


FOR_READERS = ("strategy_defaults", "versions", "inputs")
"""Tables that a run writes into its config.toml and that are not settings."""


def read_sections(path: Path, wanted: str, allowed: Sequence[str] = SECTIONS, also: Collection[str] = ()) -> Tables:
    """Return the tables of a TOML file; `wanted` says what the file should be, for the error if it does not exist.

    Tables must be among `allowed`. With `also`, tables named like one of these strategies or like module:Class are
    allowed, too. A file that a run wrote must have today's format.
    """
    tables = read_toml(path, wanted)
    written_by_run = "versions" in tables
    if written_by_run:
        tables = {name: table for name, table in tables.items() if name not in FOR_READERS}
    check_format(path, tables.pop("format", None if written_by_run else FORMAT), FORMAT)
    for name, values in tables.items():
        if name == "preset" or (name == "derived" and written_by_run):
            continue
        if name in allowed and not isinstance(values, dict):
            raise InputError(f"{path}: {name} must be one table, written [{name}]")
        if not isinstance(values, dict):
            raise InputError(f"{path}: '{name}' must be inside a section, one of: [{'], ['.join(allowed)}]")
        if name not in (*allowed, *also) and not (also and ":" in name):
            raise InputError(f"{path}: {unknown('section', name, allowed)}")
    return tables


def _read_settings(source: str) -> Tables:
    path = Path(source)
    if path.suffix != ".toml":
        raise unknown("scenario", source, [*PRESETS, "FILE.toml"])
    return read_sections(path, f"scenario must be a preset ({', '.join(PRESETS)}) or a file")


def _parse_change(change: str, allowed: Sequence[str] | None = None) -> tuple[str, str, Any]:
    """Return section, key and value of a change; the value as TOML, or as text if it is not TOML."""
    name, equals, text = change.partition("=")
    section, dot, key = name.strip().rpartition(".")
    if not (equals and key):
        raise InputError(f"a setting must be given as section.key=value, such as radio.power_w=0.2, got '{change}'")
    if not dot:
        section = "" if key == "preset" else section_of(key)
    elif allowed is not None and section not in allowed:
        raise unknown("section", section, allowed)
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:
        parsed = {}
    return section, key, parsed["value"] if list(parsed) == ["value"] else text.strip()
