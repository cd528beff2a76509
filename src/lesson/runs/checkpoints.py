"""Checkpoints as safetensors files: the state of a run, a format version and a digest that reveals damage."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors
import safetensors.numpy

from lesson.core.files import open_input

Tensors = dict[str, np.ndarray]
FORMAT = "4"
"""Format of checkpoints; a checkpoint in another format cannot be resumed."""


def packed(values: dict[str, Any], tensors: Tensors) -> bytes:
    """Return a checkpoint as bytes: the arrays, with values, format and a SHA-256 digest in the metadata."""
    state = json.dumps(values, allow_nan=False)
    whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return safetensors.numpy.save(whole, {"format": FORMAT, "state": state, "sha256": _digest(state, whole)})


def unpacked(path: Path) -> tuple[dict[str, Any], Tensors]:
    """Return the values and arrays of a checkpoint; raise ValueError if it is damaged or in another format."""
    try:
        with open_input(path) as raw, safetensors.safe_open(_name_of(raw, path), "numpy") as file:
            told = file.metadata() or {}
            if (found := told.get("format")) != FORMAT:
                raise ValueError(f"its format is {found}, not {FORMAT}: another version of lesson wrote it")
            state = told["state"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        values = json.loads(state)
    except KeyError:
        raise ValueError("it does not contain the state of a run") from None
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    except (safetensors.SafetensorError, OSError, MemoryError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(reason or "it does not fit into memory") from None
    if told.get("sha256") != _digest(state, tensors):
        raise ValueError("its SHA-256 does not match its content")
    size = values.get("metrics_bytes") if isinstance(values, dict) else None
    if not isinstance(size, int) or size < 0:
        raise ValueError("it does not contain the state of a run")
    return values, tensors


def _name_of(raw: BinaryIO, path: Path) -> str:
    """Return a name of an open file, which stays the same if another file takes its path; Windows has only the path."""
    return str(path) if os.name == "nt" else f"/dev/fd/{raw.fileno()}"


def _digest(state: str, tensors: Tensors) -> str:
    """Return the SHA-256 digest of values and arrays as hexadecimal digits."""
    digest = hashlib.sha256(state.encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
