"""What a checkpoint holds, as bytes: where a run stands, with a digest by which damage shows."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from lesson.core.files import open_input

Tensors = dict[str, np.ndarray]


def packed(values: dict[str, Any], tensors: Tensors) -> bytes:
    """A checkpoint as safetensors: arrays, with the other values and the SHA-256 of everything in its metadata."""
    state = json.dumps(values, allow_nan=False)
    whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return safetensors.numpy.save(whole, {"state": state, "sha256": _digest(state, whole)})


def unpacked(path: Path) -> tuple[dict[str, Any], Tensors]:
    """Values and arrays of a checkpoint; ValueError says what is wrong. Older ones, without a digest, are believed."""
    try:
        with open_input(path) as raw, safetensors.safe_open(f"/dev/fd/{raw.fileno()}", "numpy") as file:
            told = file.metadata() or {}
            state = told["state"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        values = json.loads(state)
    except KeyError:
        raise ValueError("it does not say where the run stands") from None
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    except (safetensors.SafetensorError, OSError, MemoryError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(reason or "it is too large for the memory there is") from None
    if told.get("sha256", digest := _digest(state, tensors)) != digest:
        raise ValueError("its SHA-256 is not the one written down in it")
    size = values.get("metrics_bytes") if isinstance(values, dict) else None
    if not isinstance(size, int) or size < 0:
        raise ValueError("it does not say where the run stands")
    return values, tensors


def _digest(state: str, tensors: Tensors) -> str:
    """The SHA-256 of values and arrays, in hexadecimal digits."""
    digest = hashlib.sha256(state.encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
