"""TOML files, with one-line errors."""

import tomllib
from pathlib import Path
from typing import Any

from lesson.core.errors import InputError


def read_toml(path: Path, wanted: str) -> dict[str, Any]:
    """Return the values of a file; `wanted` says in the error what a missing file should be."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; {wanted}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        reason = "not TOML in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"{path} cannot be read: {reason}") from None
