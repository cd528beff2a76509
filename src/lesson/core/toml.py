"""Untrusted TOML files, read in bounded time, with one-line errors."""

import re
import tomllib
from pathlib import Path
from typing import Any

from lesson.core.errors import InputError
from lesson.core.files import read_input

MAX_BYTES = 1 << 20
MAX_PARTS = 50
"""Maximum number of parts in a dotted key, for which the parser takes quadratic time. Settings have two or three."""
# Possessive quantifiers rule out backtracking, so the time is linear in the length of the text. For the same reason, an
# unterminated string of three quotes must not match as an empty one: the scan would start again at each of them.
_PART = r"""(?:[\w-]++|"(?!"")[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|'(?!'')[^'\n]*+')"""
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
    """Parse TOML in time that is linear in the length of the text; raise ValueError or RecursionError."""
    place = 0
    while found := _TOKEN.match(text, place):
        if found["long"]:
            raise ValueError(f"a key must have at most {MAX_PARTS} parts separated by dots")
        place = found.end()
    # No token matches at an unterminated string, where the parser stops as well.
    return tomllib.loads(text)


def read_toml(path: Path, wanted: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a file and the parsed values; `wanted` says in the error what a missing file should be."""
    try:
        text = read_input(path, MAX_BYTES).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        return text, parse_toml(text)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; {wanted}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # invalid TOML, not UTF-8, or a number that is too large
        reason = "not TOML in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"{path} cannot be read: {reason}") from None
