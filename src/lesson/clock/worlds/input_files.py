"""Digests of the input files that the settings name, so that a run is not resumed with other files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from lesson.core.errors import InputError
from lesson.core.files import open_input
from lesson.settings.settings import Settings, section_of


def input_digests(settings: Settings) -> dict[str, str]:
    """Return the digest of each file that the settings name, by the name of the setting."""
    return {name: _digest(Path(path)) for name, path in settings.input_files.items()}


def check_unchanged(now: Mapping[str, str], then: Mapping[str, str]) -> None:
    """Raise InputError if a file has changed since a checkpoint was written."""
    for name, digest in now.items():
        if digest != then.get(name):
            place = f"[{section_of(name)}] {name}"
            raise InputError(f"{place} must be the file that the run started with, but it has changed; restore it")


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open_input(path) as file:
            while part := file.read(1 << 20):
                digest.update(part)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()
