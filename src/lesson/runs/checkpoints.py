"""Checkpoints as safetensors files: the state of a run, a format version and a digest that reveals damage."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

Tensors = dict[str, np.ndarray]
FORMAT = "7"
"""Format of checkpoints; a checkpoint in another format cannot be resumed."""


def packed(values: dict[str, Any], tensors: Tensors) -> bytes:
    """Return a checkpoint as bytes: the arrays, with values, format and a SHA-256 digest in the metadata."""
    state = json.dumps(values, allow_nan=False)
    whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return safetensors.numpy.save(whole, {"format": FORMAT, "state": state, "sha256": _digest(state, whole)})


def unpacked(path: Path) -> tuple[dict[str, Any], Tensors]:
    """Return the values and arrays of a checkpoint; raise ValueError if it is damaged or in another format."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            if (found := metadata.get("format")) != FORMAT:
                raise ValueError(f"its format is {found}, not {FORMAT}: another version of lesson wrote it")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(str(error)) from None
    if metadata["sha256"] != _digest(metadata["state"], tensors):
        raise ValueError("its SHA-256 does not match its content")
    return json.loads(metadata["state"]), tensors


def _digest(state: str, tensors: Tensors) -> str:
    """Return the SHA-256 digest of values and contiguous arrays as hexadecimal digits."""
    digest = hashlib.sha256(state.encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
