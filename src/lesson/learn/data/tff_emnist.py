"""Conversion of TensorFlow Federated's copy of FEMNIST, an SQLite database compressed with LZMA.

The table `examples` has the columns split_name, client_id and serialized_example_proto. The last one is a protocol
buffer of the type tf.train.Example with the features `pixels` (784 floats from 0 to 1) and `label` (an integer). The
database also holds the digits on their own; the splits `all_train` and `all_test` have all 62 classes.
"""

import contextlib
import lzma
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from tqdm import tqdm

from lesson.core.errors import InputError
from lesson.core.files import write_whole
from lesson.learn.data.femnist import CLASS_NAMES, SIDE, digest, to_bytes

Bytes = npt.NDArray[np.uint8]
SPLITS = {"train": "all_train", "test": "all_test"}
DATABASE_BYTES = 4_708_990_976
CONVERTED_BYTES = 600_000_000
CHUNK_BYTES = 1 << 20
BYTES = 2
"""Wire type of a field that holds bytes, in protocol buffers."""


def check_disk_space(folder: Path) -> None:
    """Raise InputError unless there is space for the database, which is deleted after the conversion."""
    needed = DATABASE_BYTES + 2 * CONVERTED_BYTES
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise InputError(
            f"FEMNIST needs {needed / 1e9:.1f} GB of disk space in {folder} while it is converted "
            f"({CONVERTED_BYTES / 1e9:.1f} GB afterwards), but only {free / 1e9:.1f} GB are free; choose another "
            "folder with --dir"
        )


def convert(archive: Path, output: Path) -> None:
    """Decompress a database, write its images by writer to `output`, and delete the database."""
    database = archive.with_suffix("")
    try:
        _decompress(archive, database)
        with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            arrays = _read_database(connection)
    except (sqlite3.Error, lzma.LZMAError, EOFError, ValueError) as error:
        raise InputError(f"{archive} cannot be converted: {error}; delete it and download it again") from None
    except OSError as error:
        raise InputError(f"{archive} cannot be decompressed: {error}; choose another folder with --dir") from None
    finally:
        database.unlink(missing_ok=True)
    write_whole(output, safetensors.numpy.save(arrays, {"sha256": digest(arrays)}))


def _decompress(archive: Path, output: Path) -> None:
    with (
        lzma.open(archive) as file,
        output.open("wb") as out,
        tqdm(total=DATABASE_BYTES, desc="decompress", unit="B", unit_scale=True) as bar,
    ):
        while chunk := file.read(CHUNK_BYTES):
            if bar.n + len(chunk) > DATABASE_BYTES:
                raise ValueError(f"it must hold {DATABASE_BYTES} bytes, got more")
            out.write(chunk)
            bar.update(len(chunk))


def _read_database(connection: sqlite3.Connection) -> dict[str, npt.NDArray[np.generic]]:
    """Return the arrays of both splits by name; a writer's samples are adjacent, and writers are in order."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for part, split in SPLITS.items():
        (num,) = connection.execute("SELECT COUNT(*) FROM examples WHERE split_name = ?", [split]).fetchone()
        if not num:
            raise ValueError(f"it has no examples of the split {split}")
        images, labels = np.empty((num, SIDE * SIDE), np.uint8), np.empty(num, np.uint8)
        sizes: dict[str, int] = {}
        rows = connection.execute(
            "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? ORDER BY client_id, rowid",
            [split],
        )
        for index, (writer, example) in enumerate(tqdm(rows, total=num, desc=f"convert {part}", unit=" images")):
            images[index], labels[index] = parse_example(example)
            sizes[writer] = sizes.get(writer, 0) + 1
        arrays[f"{part}_images"] = images.reshape(-1, 1, SIDE, SIDE)
        arrays[f"{part}_labels"] = labels
        arrays[f"{part}_sizes"] = np.array(list(sizes.values()), dtype=np.int64)
    del arrays["test_sizes"]
    return arrays


def parse_example(example: bytes) -> tuple[Bytes, int]:
    """Return the pixels as 784 bytes and the label of a serialized tf.train.Example; raise ValueError otherwise."""
    features: dict[bytes, memoryview] = {}
    for all_features in _fields(memoryview(example), 1):  # Example.features
        for entry in _fields(all_features, 1):  # Features.feature, a map
            (name,), (feature,) = _fields(entry, 1), _fields(entry, 2)
            features[bytes(name)] = feature
    if not {b"pixels", b"label"} <= features.keys():
        raise ValueError("an example must have the features pixels and label")
    (floats,) = _fields(features[b"pixels"], 2)  # Feature.float_list
    (integers,) = _fields(features[b"label"], 3)  # Feature.int64_list
    (packed,) = _fields(floats, 1)
    pixels = np.frombuffer(packed, "<f4")
    if pixels.shape != (SIDE * SIDE,) or not ((pixels >= 0) & (pixels <= 1)).all():
        raise ValueError(f"an example must have {SIDE * SIDE} pixels from 0 to 1")
    (packed,) = _fields(integers, 1)
    label, end = _varint(packed, 0)
    if end != len(packed) or label >= len(CLASS_NAMES):
        raise ValueError(f"an example must have one label from 0 to {len(CLASS_NAMES) - 1}")
    return to_bytes(pixels), label


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the content of each field with the given number; raise ValueError if a field does not hold bytes."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        if tag & 7 != BYTES:
            raise ValueError(f"a field of an example must hold bytes, got wire type {tag & 7}")
        size, place = _varint(message, place)
        if place + size > len(message):
            raise ValueError("an example ends within a field")
        if tag >> 3 == wanted:
            yield message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return the integer at a place, in groups of seven bits with the lowest first, and the place after it."""
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(message):
            raise ValueError("an example ends within a number")
        byte = message[place]
        value |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return value, place
    raise ValueError("a number of an example has more than 64 bits")
