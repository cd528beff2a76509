"""Random numbers by counter, for whole arrays of ids at once: a value depends on its key and its ids alone.

A client's numbers do not depend on who else is asked, when, or in which order, and nothing has to be stored. Words
come from the finaliser of SplitMix64 (Steele, Lea and Flood 2014, with Stafford's constants), once for every id.
"""

import hashlib
from collections.abc import Callable
from typing import NewType

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import FloatArray, IntArray

Key = NewType("Key", int)
WordArray = npt.NDArray[np.uint64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no two ids give the same product
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_CHUNK = 16_384  # words that, with what is worked out from them, stay in a core's own cache


def key(seed: int, what: str) -> Key:
    """A 64-bit word for one purpose of one seed."""
    return Key(int.from_bytes(hashlib.blake2b(repr((int(seed), what)).encode(), digest_size=8).digest(), "little"))


def uniforms(key: Key, *ids: IntArray) -> FloatArray:
    """Numbers uniform in (0, 1), never 0 or 1, one for each row of id arrays that broadcast together, of that shape."""
    return _drawn(_uniform, key, ids)


def exponentials(key: Key, *ids: IntArray) -> FloatArray:
    """Numbers of the exponential distribution with mean 1, as `uniforms` gives its own."""
    return _drawn(_exponential, key, ids)


def normals(key: Key, *ids: IntArray) -> FloatArray:
    """Numbers of the standard normal distribution, as `uniforms` gives its own."""
    return _drawn(_normal, key, ids)


def _drawn(value: Callable[[WordArray], FloatArray], key: Key, ids: tuple[IntArray, ...]) -> FloatArray:
    """What a function makes of the word of every row of ids, a chunk at a time."""
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
    """A random 64-bit word for every row of ids, (rows,)."""
    words = np.full(len(ids[0]), key, dtype=np.uint64)
    for column in ids:
        # Joined by exclusive or: with a sum, two clients' words could be one sequence, a few blocks apart.
        words ^= column * _SPREAD
        _mix(words)
    return words


def _mix(words: WordArray) -> None:
    """Words in which every bit depends on every bit that was there, in place."""
    for shift, multiply in _ROUNDS:
        words ^= words >> shift
        words *= multiply
    words ^= words >> _LAST_SHIFT


def _uniform(words: WordArray) -> FloatArray:
    """The middles of 2^52 equal parts of (0, 1): the upper bits as the fraction of a float in [1, 2), moved down."""
    return ((words >> 12) | 0x3FF0000000000000).view(np.float64) - (1 - 2.0**-53)


def _exponential(words: WordArray) -> FloatArray:
    return -np.log(_uniform(words))


def _normal(words: WordArray) -> FloatArray:
    """One of the two numbers of Box and Muller (1958): the radius by the words, the angle by the words mixed again."""
    radius = np.sqrt(2 * _exponential(words))
    again = words ^ _SPREAD
    _mix(again)
    return radius * np.cos(2 * np.pi * _uniform(again))


def stream(seed: int, what: str, *index: int) -> np.random.Generator:
    """A generator of its own for (seed, what, index…), the same on every machine and in any order.

    The i-th number of the stream belongs to client i wherever one array is drawn for a whole population,
    so a client keeps its numbers when the population grows.
    """
    name = repr((int(seed), what, *map(int, index)))
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))
