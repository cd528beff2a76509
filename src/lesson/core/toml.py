"""TOML files of whoever wrote them: read in bounded time, with one-line errors."""

import re
import tomllib
from pathlib import Path
from typing import Any

from lesson.core.errors import InputError
from lesson.core.files import read_input

MAX_BYTES = 1 << 20
MAX_PARTS = 50
"""Of a dotted key: the parser takes time by their square. Settings have two or three."""
# Possessive quantifiers, as nothing here may be tried in two ways: time must grow with the length alone.
_PART = r"""(?:[\w-]++|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|'[^'\n]*+')"""
_DOT = r"[ \t]*+\.[ \t]*+"
_TOKEN = re.compile(
    r'''"""(?:[^"\\]++|\\[\s\S]|"{1,2}+(?!"))*+"{3,5}+'''
    r"""|'''(?:[^']++|'{1,2}+(?!'))*+'{3,5}+"""
    r"|#[^\n]*+"
    rf"|(?P<long>{_PART}(?:{_DOT}{_PART}){{{MAX_PARTS}}})"
    rf"|{_PART}(?:{_DOT}{_PART})*+"
    r"""|[^\w"'#-]++"""
)


def parse_toml(text: str) -> dict[str, Any]:
    """What a text in TOML says; raises ValueError or RecursionError. Time grows with the length of the text alone."""
    place = 0
    while found := _TOKEN.match(text, place):
        if found["long"]:
            raise ValueError(f"a key must have at most {MAX_PARTS} parts with dots between")
        place = found.end()
    # Where no token matches, a string does not end, and the parser goes no further either.
    return tomllib.loads(text)


def read_toml(path: Path, wanted: str) -> tuple[str, dict[str, Any]]:
    """The text of a file and what it says; `wanted` tells what should be there if there is no file."""
    try:
        text = read_input(path, MAX_BYTES).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        return text, parse_toml(text)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; {wanted}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # damaged TOML, bytes that are not text, numbers beyond all bounds
        reason = "not TOML in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"{path} cannot be read: {reason}") from None
