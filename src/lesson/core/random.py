"""Counter-based random numbers for whole arrays of ids: a value depends only on its key and its ids.

A client's numbers do not depend on which other clients are drawn, when, or in which order, and there is no state to
store. Words come from the finalizer of SplitMix64 (Steele, Lea and Flood 2014, with Stafford's constants), applied
once per id.
"""

import hashlib
import struct
from collections.abc import Callable
from typing import Any, NewType

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import FloatArray, IntArray

Key = NewType("Key", int)
WordArray = npt.NDArray[np.uint64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # odd, so that different ids have different products
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_CHUNK = 16_384  # words per chunk; the chunk and its intermediate results fit into a core's cache


def key(seed: int, what: str) -> Key:
    """Return the 64-bit key of one purpose under one seed."""
    return Key(number_of(seed, what))


def uniforms(key: Key, *ids: IntArray) -> FloatArray:
    """Return uniform numbers in the open interval (0, 1), with the shape that the id arrays broadcast to."""
    return _drawn(_uniform, key, ids)


def exponentials(key: Key, *ids: IntArray) -> FloatArray:
    """Return exponential numbers with mean 1, with the shape that the id arrays broadcast to."""
    return _drawn(_exponential, key, ids)


def normals(key: Key, *ids: IntArray) -> FloatArray:
    """Return standard normal numbers, with the shape that the id arrays broadcast to."""
    return _drawn(_normal, key, ids)


def _drawn(value: Callable[[WordArray], FloatArray], key: Key, ids: tuple[IntArray, ...]) -> FloatArray:
    """Apply `value` to the word of each element of the broadcast ids, chunk by chunk."""
    columns = [np.asarray(column, dtype=np.int64).view(np.uint64) for column in ids]
    chunks = np.nditer(
        [*columns, None],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_dtypes=[*(np.uint64 for _ in columns), np.float64],
        order="C",
        buffersize=_CHUNK,
    )
    with chunks:
        for *chunk, out in chunks:
            out[...] = value(_words(key, chunk))
        drawn: FloatArray = chunks.operands[-1]
    return drawn


def _words(key: Key, ids: list[WordArray]) -> WordArray:
    """Return a random 64-bit word for every row of ids, shape (rows,)."""
    words = np.full(len(ids[0]), key, dtype=np.uint64)
    for column in ids:
        # XOR, not addition: with a sum, two clients could have the same sequence, shifted by a few blocks.
        words ^= column * _SPREAD
        _mix(words)
    return words


def _mix(words: WordArray) -> None:
    """Mix words in place, so that every output bit depends on every input bit."""
    for shift, multiply in _ROUNDS:
        words ^= words >> shift
        words *= multiply
    words ^= words >> _LAST_SHIFT


def _uniform(words: WordArray) -> FloatArray:
    """Map words to midpoints of 2^52 equal parts of (0, 1): the upper bits become the fraction of a float in [1, 2)."""
    return ((words >> 12) | 0x3FF0000000000000).view(np.float64) - (1 - 2.0**-53)


def _exponential(words: WordArray) -> FloatArray:
    return -np.log(_uniform(words))


def _normal(words: WordArray) -> FloatArray:
    """Return one of the two numbers of Box and Muller (1958): the word gives the radius, a second mix the angle."""
    radius = np.sqrt(2 * _exponential(words))
    again = words ^ _SPREAD
    _mix(again)
    return radius * np.cos(2 * np.pi * _uniform(again))


def stream(seed: int, what: str, *index: int) -> np.random.Generator:
    """Return an independent generator for (seed, what, index…), the same on every machine and in any order of calls.

    Wherever one array is drawn for a whole population, the i-th number of the stream belongs to client i, so a client
    keeps its numbers when the population grows.
    """
    return np.random.Generator(np.random.Philox(key=number_of(seed, what, *index, num_bytes=16)))


class RepeatedStream:
    """The generators of `stream` for one index after another. It reuses one object, which is several times faster."""

    def __init__(self, seed: int, what: str) -> None:
        self._begin = _name(seed, what)[:-1]  # the name of a stream, up to its index
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)
        zeros = (0, 0, 0, 0)  # Philox reads tuples several times faster than arrays
        self._key: dict[str, tuple[int, ...]] = {"counter": zeros}
        self._state: Any = {**self._bits.state, "state": self._key, "buffer": zeros}

    def at(self, index: int) -> np.random.Generator:
        """Return the generator for an index; valid until the next call."""
        self._key["key"] = struct.unpack("<2Q", _digest(f"{self._begin}, {index})", 16))
        self._bits.state = self._state
        return self._generator


def number_of(seed: int, what: str, *index: int, num_bytes: int = 8) -> int:
    """Return the whole number that identifies (seed, what, index…), for generators other than `stream`."""
    return int.from_bytes(_digest(_name(seed, what, *index), num_bytes), "little")


def _name(seed: int, what: str, *index: int) -> str:
    return repr((int(seed), what, *map(int, index)))


def _digest(name: str, num_bytes: int) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=num_bytes).digest()
