"""TOML files, with one-line errors."""

import tomllib
from pathlib import Path
from typing import Any

from lesson.core.errors import InputError


def read_toml(path: Path, wanted: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a file and the parsed values; `wanted` says in the error what a missing file should be."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return text, tomllib.loads(text)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; {wanted}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # invalid TOML, not UTF-8, or a number that is too large
        reason = "not TOML in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"{path} cannot be read: {reason}") from None
