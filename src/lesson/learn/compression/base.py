"""The protocol of compressors, and the bytes of what they send.

A compressor turns the update of a client, its trained model minus the model it started from, into a message, and a
message into the update that the server decodes. A simulation aggregates decoded updates; on Flower, the message is
sent. How long it is must not depend on the values: the clock then knows every upload time before anything is trained.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.core.errors import InputError
from lesson.core.validation import CheckedArguments, Flag

FLOAT_BITS = 32
BitArray = npt.NDArray[np.uint8]
_WORD = np.dtype(">u4")
Random = Callable[[int], Tensor]
"""Returns that many uniform random numbers from [0, 1) for each update, shape (num_updates, count): 16 bits or more.
Each call returns others."""


class MessagePart(NamedTuple):
    """One part of the messages of several updates.

    Attributes:
        values: Shape (num_updates, count): floats, sent as they are, or whole numbers from 0 to 2^bits − 1.
        bits: Bits sent for each value.
    """

    values: Tensor
    bits: int


def _no_random(_: int) -> Tensor:
    raise RuntimeError("only encode has random numbers")


@dataclass(frozen=True)
class UpdateLayout:
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
    """Base class of compressors. Options are fields of a frozen dataclass; users set them in [upload].

    The level, a number such as bits per value, says how much is sent of an update.

    Attributes:
        error_feedback: Whether a client adds what its messages have left out so far to its next update.
        uncompressed: Level at which updates are sent as they are.
        levels: Other levels that strategies may choose.
        level: Level unless [upload] level sets another one.
    """

    error_feedback: Flag = False
    uncompressed: ClassVar[float] = float(FLOAT_BITS)
    levels: ClassVar[Sequence[float]]
    level: ClassVar[float]

    def check(self, level: float) -> None:
        """Raise InputError unless the compressor has this level."""
        if level not in (self.uncompressed, *self.levels):
            allowed = ", ".join(f"{one:g}" for one in (self.uncompressed, *self.levels))
            raise InputError(f"must be one of {allowed}, got {level:g}")

    def bits(self, layout: UpdateLayout) -> int:
        """Return the length of the message of one update in bits."""
        raise NotImplementedError

    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        """Return the messages of updates, shape (num_updates, num_values), which must not be changed."""
        raise NotImplementedError

    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        """Return the updates of messages, shape (num_updates, num_values)."""
        raise NotImplementedError


def uniforms(generators: Sequence[np.random.Generator], count: int) -> Tensor:
    """Return random numbers for the encoder on a CPU, one row per generator: multiples of 2^−16."""
    numbers = np.empty((len(generators), count), dtype=np.float32)
    for row, generator in zip(numbers, generators, strict=True):
        words = generator.integers(0, 2**64 - 1, -(-count // 4), dtype=np.uint64, endpoint=True)
        np.multiply(words.astype("<u8", copy=False).view("<u2")[:count], np.float32(2.0**-16), out=row)
    return torch.from_numpy(numbers)


def message_bits(compressor: Compressor, layout: UpdateLayout) -> int:
    """Return the length of the message of one update in bits, also for the level without compression."""
    if layout.level == compressor.uncompressed:
        return FLOAT_BITS * layout.num_values
    bits = compressor.bits(layout)
    if not (isinstance(bits, int) and bits > 0):
        raise InputError(f"{type(compressor).__name__}.bits must return a whole number > 0, got {bits!r}")
    return bits


def encoded(compressor: Compressor, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
    """Return the messages of updates; raise InputError if they are not as long as the compressor says."""
    if layout.level == compressor.uncompressed:
        return [MessagePart(updates, FLOAT_BITS)]
    message = compressor.encode(updates, layout)
    used, said = sum(part.values.shape[1] * part.bits for part in message), compressor.bits(layout)
    if used != said:
        raise InputError(
            f"{type(compressor).__name__}.bits must return the length of a message, which is {used} bits at level "
            f"{layout.level:g}, got {said}"
        )
    return message


def decoded(compressor: Compressor, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
    """Return the updates of messages, shape (num_updates, num_values)."""
    if layout.level == compressor.uncompressed:
        return message[0].values
    return compressor.decode(message, replace(layout, random=_no_random))


def can_be_sent(part: MessagePart) -> bool:
    """Return whether the values of a part are floats of this length or whole numbers that fit into 1 to 32 bits."""
    if _is_sent_as_is(part):
        return True
    values, largest = part.values, (1 << part.bits) - 1
    return 1 <= part.bits <= 32 and bool(((values >= 0) & (values <= largest) & (values == values.floor())).all())


def pack(message: Sequence[MessagePart]) -> bytes:
    """Return the message of one update as bytes: all parts without gaps, padded with zero bits at the end."""
    return np.packbits(np.concatenate([_to_bits(part) for part in message])).tobytes()


def unpack(packed: bytes, like: Sequence[MessagePart]) -> list[MessagePart]:
    """Return a packed message, whose parts have the shapes, types and bits of the parts in `like`.

    Raises InputError if it does not have the right length.
    """
    counts = [part.values.shape[1] * part.bits for part in like]
    if len(packed) != -(-sum(counts) // 8):
        raise InputError(f"the message must have {-(-sum(counts) // 8)} bytes, got {len(packed)}")
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=sum(counts))
    pieces = np.split(bits, np.cumsum(counts)[:-1])
    return [MessagePart(_from_bits(piece, part), part.bits) for piece, part in zip(pieces, like, strict=True)]


def _to_bits(part: MessagePart) -> BitArray:
    values = part.values[0].cpu()
    if _is_sent_as_is(part):
        return np.unpackbits(values.numpy().view(np.uint8))
    numbers = values.to(torch.int64).numpy().astype(_WORD)
    return np.unpackbits(numbers.view(np.uint8).reshape(-1, 4), axis=1)[:, -part.bits :].reshape(-1)


def _from_bits(bits: BitArray, part: MessagePart) -> Tensor:
    if _is_sent_as_is(part):
        return torch.frombuffer(bytearray(np.packbits(bits).tobytes()), dtype=part.values.dtype)[None]
    columns = np.pad(bits.reshape(-1, part.bits), ((0, 0), (32 - part.bits, 0)))
    numbers = np.packbits(columns, axis=1).view(_WORD).reshape(-1)
    return torch.from_numpy(numbers.astype(np.int64)).to(part.values.dtype)[None]


def _is_sent_as_is(part: MessagePart) -> bool:
    return part.values.is_floating_point() and part.bits == 8 * part.values.element_size()
