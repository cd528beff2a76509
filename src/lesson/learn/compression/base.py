"""The protocol of compressors, and the bytes of what they send.

A compressor turns the update of a client, its trained model minus the model it started from, into a message, and a
message into the update that the server decodes. A simulation aggregates decoded updates; on Flower, the message is
sent. How long it is must not depend on the values: the clock then knows every upload time before anything is trained.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.core.errors import InputError
from lesson.core.validation import CheckedArguments

FLOAT_BITS = 32
BitArray = npt.NDArray[np.uint8]
_WORD = np.dtype(">u4")
Random = Callable[[int], Tensor]
"""Returns that many uniform random numbers from [0, 1) for each update, shape (num_updates, count)."""


class Sent(NamedTuple):
    """One part of the messages of several updates."""

    values: Tensor
    """Shape (num_updates, count): floats, sent as they are, or whole numbers from 0 to 2^bits − 1."""
    bits: int
    """Bits sent for each value."""


def _no_random(_: int) -> Tensor:
    raise RuntimeError("a decoder has no random numbers")


@dataclass(frozen=True)
class Layout:
    """What the messages of updates depend on besides their values.

    Attributes:
        sizes: Number of values of each array of the model. An update has the values of one array after the other.
        level: Compression level.
        random: Returns random numbers for the encoder.
    """

    sizes: Sequence[int]
    level: float
    random: Random = _no_random

    @property
    def num_values(self) -> int:
        """Number of values of an update."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Compressor(CheckedArguments):
    """Base class of compressors; one with options is a frozen dataclass, with a field for each option.

    The level, a number such as bits per value, says how much is sent of an update.
    """

    uncompressed: ClassVar[float] = float(FLOAT_BITS)
    """Level at which updates are sent as they are."""
    levels: ClassVar[Sequence[float]]
    """Levels that strategies may choose besides."""
    level: ClassVar[float]
    """Level unless [upload] level sets another one."""
    error_feedback: ClassVar[bool] = False
    """Whether clients use error feedback unless [upload] error_feedback says otherwise."""

    def check(self, level: float) -> None:
        """Raise InputError unless the compressor has this level."""
        if level not in (self.uncompressed, *self.levels):
            allowed = ", ".join(f"{one:g}" for one in (self.uncompressed, *self.levels))
            raise InputError(f"must be one of {allowed}, got {level:g}")

    def bits(self, layout: Layout) -> int:
        """Return the length of the message of one update in bits."""
        raise NotImplementedError

    def encode(self, updates: Tensor, layout: Layout) -> list[Sent]:
        """Return the messages of updates, shape (num_updates, num_values)."""
        raise NotImplementedError

    def decode(self, fields: Sequence[Sent], layout: Layout) -> Tensor:
        """Return the updates of messages, shape (num_updates, num_values)."""
        raise NotImplementedError


def message_bits(compressor: Compressor, layout: Layout) -> int:
    """Return the length of the message of one update in bits, also for the level without compression."""
    return FLOAT_BITS * layout.num_values if layout.level == compressor.uncompressed else compressor.bits(layout)


def encoded(compressor: Compressor, updates: Tensor, layout: Layout) -> list[Sent]:
    """Return the messages of updates; raise InputError if they are not as long as the compressor says."""
    fields = compressor.encode(updates, layout)
    used, said = sum(field.values.shape[1] * field.bits for field in fields), compressor.bits(layout)
    if used != said:
        raise InputError(
            f"{type(compressor).__name__}.bits must return the length of a message, which is {used} bits at level "
            f"{layout.level:g}, got {said}"
        )
    return fields


def pack(fields: Sequence[Sent]) -> bytes:
    """Return the message of one update as bytes: all fields without gaps, padded with zero bits at the end."""
    parts = [_to_bits(field) for field in fields]
    return np.packbits(np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)).tobytes()


def unpack(message: bytes, like: Sequence[Sent]) -> list[Sent]:
    """Return the fields of a packed message, which have the shapes, types and bits of the fields in `like`.

    Raises InputError if the message does not have the right length.
    """
    counts = [field.values.shape[1] * field.bits for field in like]
    if len(message) != -(-sum(counts) // 8):
        raise InputError(f"the message must have {-(-sum(counts) // 8)} bytes, got {len(message)}")
    bits = np.unpackbits(np.frombuffer(message, dtype=np.uint8), count=sum(counts))
    parts = np.split(bits, np.cumsum(counts)[:-1])
    return [Sent(_from_bits(part, field), field.bits) for part, field in zip(parts, like, strict=True)]


def _to_bits(field: Sent) -> BitArray:
    values = field.values[0].cpu()
    if _is_sent_as_is(field):
        return np.unpackbits(values.numpy().view(np.uint8))
    numbers = values.to(torch.int64).numpy().astype(_WORD)
    return np.unpackbits(numbers.view(np.uint8).reshape(-1, 4), axis=1)[:, -field.bits :].reshape(-1)


def _from_bits(bits: BitArray, field: Sent) -> Tensor:
    if _is_sent_as_is(field):
        return torch.frombuffer(bytearray(np.packbits(bits).tobytes()), dtype=field.values.dtype)[None]
    columns = np.pad(bits.reshape(-1, field.bits), ((0, 0), (32 - field.bits, 0)))
    numbers = np.packbits(columns, axis=1).view(_WORD).reshape(-1)
    return torch.from_numpy(numbers.astype(np.int64)).to(field.values.dtype)[None]


def _is_sent_as_is(field: Sent) -> bool:
    return field.values.is_floating_point() and field.bits == 8 * field.values.element_size()
