"""Compressed uploads on Flower: how clients encode their updates, and how the server decodes them.

Both use the compressors of the simulator, and the same random numbers, so that the server decodes the same bits.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from lesson.clock.rejections import WRONG_ARRAYS, WRONG_SHAPE
from lesson.core.arrays import BoolArray
from lesson.core.errors import InputError
from lesson.flower.arrays import Layout, Vector
from lesson.flower.replies import read_arrays
from lesson.learn.compression import level_bits, level_of, make_compressor
from lesson.learn.compression.base import Compressor
from lesson.learn.compression.remote import decode_update, encode_update
from lesson.learn.guards import InvalidUpdateError, check_names, check_values
from lesson.settings.sections import UploadSettings

MESSAGE = "lesson.message"
"""Name of the array that holds a compressed update."""
RESIDUAL, RESIDUAL_OF = "lesson.residual", "lesson.residual-of"
"""Names of the records with a client's residuals, before and after its last message, and with the index of this update,
in the state of its node."""
BUFFERS = ("running_mean", "running_var")
"""Ends of the names of PyTorch's buffers, which are not compressed: a variance must not become negative."""


@dataclass(frozen=True)
class UploadCodec:
    """Encodes and decodes the updates of models with one layout. Float arrays are compressed, except BUFFERS."""

    compressor: Compressor
    layout: Layout

    @property
    def sizes(self) -> dict[str, int]:
        """Number of values of each array that is compressed, by name."""
        arrays = zip(self.layout.names, self.layout.sizes, self.layout.types, strict=True)
        return {name: size for name, size, kind in arrays if kind.kind == "f" and not name.endswith(BUFFERS)}

    @property
    def others(self) -> list[str]:
        """Names of the arrays that are sent as they are."""
        return [name for name in self.layout.names if name not in self.sizes]

    @property
    def is_compressed(self) -> BoolArray:
        """Which values of a model's vector are compressed."""
        return np.repeat([name in self.sizes for name in self.layout.names], self.layout.sizes)

    def decode(self, arrays: ArrayRecord, base: Vector, level: float) -> Vector:
        """Return the model of a reply, given the model that the client started from; raise InvalidUpdateError."""
        if MESSAGE not in arrays:
            self.layout.vector(arrays)  # raises if something else is wrong
            raise InvalidUpdateError(
                WRONG_ARRAYS, "the update is not compressed; use ClientApp(mods=[compress_uploads])"
            )
        check_names(list(arrays), [MESSAGE, *self.others])
        message = arrays[MESSAGE].numpy().tobytes()
        try:
            update = decode_update(self.compressor, message, [*self.sizes.values()], level)
        except InputError as error:
            raise InvalidUpdateError(WRONG_SHAPE, str(error)) from None
        is_compressed = self.is_compressed
        rest = self.layout.only(self.others).vector(ArrayRecord({name: arrays[name] for name in self.others}))
        vector = base.copy()
        vector[is_compressed] += update
        vector[~is_compressed] = rest
        return check_values(MESSAGE, vector, np.float64 if self.layout.precise else np.float32)


def begin_upload(asked: Mapping[str, Any], received: RecordDict, state: RecordDict) -> Callable[[RecordDict], None]:
    """Return a function that compresses the update in a reply to a message, in place.

    The residual of error feedback is in the state of the node. The server says which update of the client it received
    last: if it is not the one of the last message, the residual is the one before that message.
    """
    arrays = read_arrays(received)
    compressor = make_compressor(UploadSettings(compression=asked["compression"], **json.loads(asked["options"])))
    assert compressor is not None, "the server asks for a compressor"
    codec = UploadCodec(compressor, Layout.of(arrays))
    base = codec.layout.vector(arrays)

    def compress(reply: RecordDict) -> None:
        try:
            trained = read_arrays(reply)
            vector = codec.layout.vector(trained)
        except InvalidUpdateError:
            return  # the server rejects the reply and says why
        update = (vector - base)[codec.is_compressed].astype(np.float32)
        residual = _residual(asked, state, update) if compressor.error_feedback else None
        if residual is not None:
            update += residual
        key = asked["seed"], asked["client"], asked["update"]
        message, decoded = encode_update(compressor, update, [*codec.sizes.values()], asked["level"], key)
        if residual is not None:
            state[RESIDUAL] = ArrayRecord({"before": Array(residual), "after": Array(update - decoded)})
            state[RESIDUAL_OF] = ConfigRecord({"update": asked["update"]})
        packed = Array(np.frombuffer(message, dtype=np.uint8))
        (name,) = reply.array_records
        reply[name] = ArrayRecord({MESSAGE: packed} | {other: trained[other] for other in codec.others})

    return compress


def _residual(asked: Mapping[str, Any], state: RecordDict, like: Vector) -> Vector:
    """Return what the messages that the server has received left out."""
    if RESIDUAL not in state.array_records:
        return np.zeros_like(like)
    was_received = state.config_records[RESIDUAL_OF]["update"] == asked["received"]
    return state.array_records[RESIDUAL]["after" if was_received else "before"].numpy()


@dataclass(frozen=True)
class Uploads:
    """The compression that a server asks its clients for."""

    settings: UploadSettings
    seed: int
    codec: UploadCodec

    @classmethod
    def of(cls, settings: UploadSettings, seed: int, layout: Layout) -> "Uploads | None":
        """Return the compression of these settings; None without compression."""
        compressor = make_compressor(settings)
        return None if compressor is None else cls(settings, seed, UploadCodec(compressor, layout))

    @property
    def level(self) -> float:
        """Level of uploads whose level the strategy does not choose."""
        return level_of(self.codec.compressor, self.settings)

    def level_bits(self, model_bits: float) -> dict[float, float]:
        """Return the size of an upload in bits at each level, if a model has `model_bits`."""
        sizes = [*self.codec.sizes.values()]
        others = sum(self.codec.layout.sizes) - sum(sizes)
        found = level_bits(self.codec.compressor, sizes, others, self.level, model_bits)
        return {float(level): bits for level, bits in found.items()}

    def ask(self, level: float, client: int, index: int, received: int) -> ConfigRecord:
        """Return the record that asks for a compressed update; `received` is the index of the last one received."""
        return ConfigRecord(
            {
                "compression": self.settings.compression,
                "options": json.dumps(self.settings.options),
                "level": level,
                "seed": self.seed,
                "client": client,
                "update": index,
                "received": received,
            }
        )
