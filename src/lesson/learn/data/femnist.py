"""FEMNIST: handwritten digits and letters by writer, 62 classes (Caldas et al., "LEAF", 2018).

`lesson data femnist` downloads TensorFlow Federated's copy (3,400 writers, 671,585 training and 77,483 test images), an
SQLite database compressed with LZMA, and converts it to a file of arrays, which runs read.

The table `examples` has the columns split_name, client_id and serialized_example_proto. The last one is a protocol
buffer of the type tf.train.Example with the features `pixels` (784 floats from 0 to 1) and `label` (an integer). The
database also holds the digits on their own; the splits `all_train` and `all_test` have all 62 classes. The background
is white: 255.
"""

import contextlib
import lzma
import sqlite3
import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy
from tqdm import tqdm

from lesson.core.errors import InputError
from lesson.core.files import write_whole
from lesson.learn.data.samples import Samples, consecutive

FOLDER = "femnist"
CONVERTED = "femnist.safetensors"
CLASS_NAMES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
SIDE = 28
SPLITS = {"train": "all_train", "test": "all_test"}
ARRAYS = ("train_images", "train_labels", "train_sizes", "test_images", "test_labels")
"""Arrays of the converted file. `train_sizes` has the number of training images of each writer; they are adjacent."""
DATABASE_BYTES = 4_708_990_976
CHUNK_BYTES = 1 << 20


def read_femnist(folder: Path) -> Samples:
    """Read the converted file in a folder of data sets; raise InputError if it is missing or damaged.

    Inputs are bytes of shape (num, 1, 28, 28). Every writer with training images is a client.
    """
    path, remedy = folder / FOLDER / CONVERTED, "run 'lesson data femnist' to download it"
    try:
        with safetensors.safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in ARRAYS}
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; {remedy}, or set LESSON_DATA_DIR to its folder") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {error}; {remedy} again") from None
    return Samples(
        arrays["train_images"],
        arrays["train_labels"].astype(np.int64),
        arrays["test_images"],
        arrays["test_labels"].astype(np.int64),
        consecutive(arrays["train_sizes"].tolist()),
        CLASS_NAMES,
    )


def convert(archive: Path, output: Path) -> None:
    """Decompress a verified database, write its images by writer to `output`, and delete the database."""
    database = archive.with_suffix("")
    try:
        _decompress(archive, database)
        with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            arrays = _read_database(connection)
    except OSError as error:
        raise InputError(f"{archive} cannot be decompressed: {error}; choose another folder with --dir") from None
    finally:
        database.unlink(missing_ok=True)
    write_whole(output, safetensors.numpy.save(arrays))


def _decompress(archive: Path, output: Path) -> None:
    with (
        lzma.open(archive) as file,
        output.open("wb") as out,
        tqdm(total=DATABASE_BYTES, desc="decompress", unit="B", unit_scale=True) as bar,
    ):
        while chunk := file.read(CHUNK_BYTES):
            out.write(chunk)
            bar.update(len(chunk))


def _read_database(connection: sqlite3.Connection) -> dict[str, npt.NDArray[np.generic]]:
    """Return the arrays of both splits by name; a writer's samples are adjacent, and writers are in order."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for part, split in SPLITS.items():
        (num,) = connection.execute("SELECT COUNT(*) FROM examples WHERE split_name = ?", [split]).fetchone()
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


def parse_example(example: bytes) -> tuple[npt.NDArray[np.uint8], int]:
    """Return the pixels as 784 bytes and the label of a serialized tf.train.Example."""
    features: dict[bytes, memoryview] = {}
    for all_features in _fields(memoryview(example), 1):  # Example.features
        for entry in _fields(all_features, 1):  # Features.feature, a map
            (name,), (feature,) = _fields(entry, 1), _fields(entry, 2)
            features[bytes(name)] = feature
    (floats,) = _fields(features[b"pixels"], 2)  # Feature.float_list
    (integers,) = _fields(features[b"label"], 3)  # Feature.int64_list
    (pixels,), (label,) = _fields(floats, 1), _fields(integers, 1)
    # Pixels are multiples of 1/255 in all copies of the data.
    return np.rint(np.frombuffer(pixels, "<f4") * 255).astype(np.uint8), _varint(label, 0)[0]


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the content of each field with the given number; all fields of an example hold bytes."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        size, place = _varint(message, place)
        if tag >> 3 == wanted:
            yield message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return the integer at a place, in groups of seven bits with the lowest first, and the place after it."""
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        shift, place = shift + 7, place + 1
        if byte < 128:
            return value, place
