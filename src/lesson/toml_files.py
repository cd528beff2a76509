"""TOML files of whoever wrote them: read in bounded time, with one-line errors."""

import re
import tomllib
from pathlib import Path
from typing import Any

from lesson.errors import InputError

MAX_BYTES = 1 << 20
MAX_PARTS = 50
"""Of a dotted key: the parser takes time by their square. Settings have two or three."""
_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MAX_PARTS}}}")


def read_toml(path: Path, wanted: str) -> tuple[str, dict[str, Any]]:
    """The text of a file and what it says; `wanted` tells what should be there if there is no file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(f"{path} cannot be read: it must have at most {MAX_BYTES} bytes; leave something out")
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        if _LONG_KEY.search(text):
            raise InputError(f"{path} cannot be read: a key must have at most {MAX_PARTS} parts with dots between")
        return text, tomllib.loads(text)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; {wanted}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # damaged TOML, bytes that are not text, numbers beyond all bounds
        reason = "not TOML in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"{path} cannot be read: {reason}") from None
