"""Compressors of uploads, by name. To add one, write its file and add a line to COMPRESSORS."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lesson.core.errors import InputError, describe, raised_inside, unknown
from lesson.core.plugins import load_named
from lesson.learn.compression.base import (
    FLOAT_BITS,
    Compressor,
    UpdateLayout,
    can_be_sent,
    decoded,
    encoded,
    message_bits,
    uniforms,
)
from lesson.learn.compression.half import Float16
from lesson.learn.compression.qsgd import QSGD
from lesson.learn.compression.sign import Sign
from lesson.learn.compression.sparse import RandK, TopK
from lesson.learn.compression.uniform import Uniform
from lesson.settings.sections import UploadSettings

COMPRESSORS: dict[str, type[Compressor]] = {
    "float16": Float16,
    "qsgd": QSGD,
    "randk": RandK,
    "sign": Sign,
    "topk": TopK,
    "uniform": Uniform,
}

NEEDED = ("level", "levels", "bits", "encode", "decode")
"""What a custom compressor must define."""


def find_compressor(name: str) -> type[Compressor]:
    """Return the compressor class registered under a name, or given as module:Class."""
    if ":" not in name:
        if name not in COMPRESSORS:
            error = unknown("compression", name, ["none", *COMPRESSORS])
            raise InputError(f"{error}; or your own, as module:Class")
        return COMPRESSORS[name]
    kind: Any = load_named("compression", name)
    if not (isinstance(kind, type) and issubclass(kind, Compressor)):
        raise InputError(f"compression '{name}' must be a class derived from lesson.Compressor")
    missing = [one for one in NEEDED if getattr(kind, one, None) is getattr(Compressor, one, None)]
    if missing:
        raise InputError(f"compression '{name}' must define {', '.join(NEEDED)}; it lacks {', '.join(missing)}")
    try:
        valid = all(float(level) > 0 for level in (kind.level, *kind.levels))
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise InputError(f"compression '{name}' must have a number as level, and numbers as levels, all > 0")
    return kind


def make_compressor(upload: UploadSettings) -> Compressor | None:
    """Return the compressor of these settings, with its options; None without compression."""
    if upload.compression == "none":
        return None
    kind = find_compressor(upload.compression)
    allowed = [field.name for field in dataclasses.fields(kind)]
    for option in upload.options:
        if option not in allowed:
            raise unknown("setting", option, [*type(upload).model_fields, *allowed], section="upload")
    try:
        return kind(**upload.options)
    except InputError as error:
        raise InputError(f"[upload] {error}") from None
    except TypeError as error:
        raise InputError(f"compression {upload.compression} cannot be created: {error}") from raised_inside(error)


def level_of(compressor: Compressor, upload: UploadSettings) -> float:
    """Return the level of uploads whose level the strategy does not choose."""
    level = compressor.level if upload.level is None else upload.level
    try:
        compressor.check(level)
    except InputError as error:
        raise InputError(f"[upload] level of {upload.compression} {error}") from None
    return float(level)


def check_custom(compressor: Compressor, sizes: Sequence[int], level: float) -> None:
    """Raise InputError unless a custom compressor encodes and decodes updates of arrays of these sizes correctly."""
    name, sources = type(compressor).__name__, [np.random.default_rng(seed) for seed in range(2)]
    layout = UpdateLayout(sizes, level, lambda count: uniforms(sources, count))
    updates = uniforms(sources, layout.num_values) - 0.5
    given = updates.clone()
    try:
        message = encoded(compressor, updates, layout)
        is_sendable = all(map(can_be_sent, message))
        received = decoded(compressor, message, UpdateLayout(sizes, level))  # the server has no random numbers
        shape, is_finite = received.shape, bool(received.isfinite().all())
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name} cannot compress an update: {describe(error)}") from error
    if not is_sendable:
        raise InputError(
            f"{name}.encode must return floats in 32 bits or whole numbers from 0 to 2^bits - 1, bits <= 32"
        )
    if any(len(part.values) != len(updates) for part in message):
        raise InputError(f"{name}.encode must return a row for each update in every part of the message")
    if not torch.equal(updates, given):
        raise InputError(f"{name}.encode must not change the updates; use a copy")
    if shape != updates.shape:
        raise InputError(f"{name}.decode must return the shape {tuple(updates.shape)}, got {tuple(shape)}")
    if not is_finite:
        raise InputError(f"{name}.decode must return finite numbers")


def level_bits(
    compressor: Compressor, sizes: Sequence[int], num_buffer_values: int, level: float, model_bits: float
) -> dict[str, float]:
    """Return the size of an upload in bits at each level that plans may name, from the least to the most compression.

    `model_bits` is charged for a model that is not compressed; its actual size is 32 bits for each of the values, of
    which `num_buffer_values` are never compressed.
    """
    levels = {float(one) for one in (compressor.uncompressed, *compressor.levels, level)}
    num_values = sum(sizes) + num_buffer_values
    scale = model_bits / (FLOAT_BITS * num_values)
    sent = {one: message_bits(compressor, UpdateLayout(sizes, one)) + FLOAT_BITS * num_buffer_values for one in levels}
    # Without compression comes first even if a level has a longer message, such as topk with 90 % of the values.
    order = sorted(sent, key=lambda one: (one != compressor.uncompressed, -sent[one]))
    return {str(one): scale * sent[one] for one in order}
