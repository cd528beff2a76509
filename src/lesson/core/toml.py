"""TOML files, with one-line errors."""

import tomllib
from pathlib import Path
from typing import Any

from lesson.core.errors import InputError
from lesson.core.files import read_text


def read_toml(path: Path, wanted: str) -> dict[str, Any]:
    """Return the values of a file; `wanted` says in the error what a missing file should be."""
    try:
        return tomllib.loads(read_text(path, "TOML", wanted))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} cannot be read: {error}") from None
