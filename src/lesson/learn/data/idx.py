"""The IDX format of MNIST and Fashion-MNIST: gzip files with a header of big-endian sizes, followed by bytes."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError

Bytes = npt.NDArray[np.uint8]
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
UNSIGNED_BYTE = 8
MAX_BYTES = 60_000 * 28 * 28
"""The training images of MNIST and Fashion-MNIST; no other file is larger."""
CHUNK_BYTES = 1 << 20


def read_idx_folder(folder: Path | str) -> tuple[Bytes, IntArray, Bytes, IntArray]:
    """Return training images, training labels, test images and test labels from the four files in a folder."""
    folder = Path(folder)
    train_images, train_labels, test_images, test_labels = (
        read_idx(folder / name, num_axes=3 if "images" in name else 1) for name in FILES
    )
    for images, labels, name in ((train_images, train_labels, FILES[1]), (test_images, test_labels, FILES[3])):
        if len(images) != len(labels):
            raise InputError(f"{folder / name} must have {len(images)} labels, one per image, got {len(labels)}")
    return (
        train_images[:, None],
        train_labels.astype(np.int64),
        test_images[:, None],
        test_labels.astype(np.int64),
    )


def read_idx(path: Path | str, num_axes: int) -> Bytes:
    """Return the array in a file; raise InputError unless it matches its header."""
    path = Path(path)
    remedy = "download the file again"
    try:
        with gzip.open(path) as file:
            header = file.read(4 + 4 * num_axes)
            if len(header) < 4 + 4 * num_axes or header[:4] != bytes([0, 0, UNSIGNED_BYTE, num_axes]):
                raise InputError(f"{path} is not an IDX file of bytes with {num_axes} axes; {remedy}")
            shape = struct.unpack(f">{num_axes}I", header[4:])
            wanted = math.prod(shape)
            if wanted > MAX_BYTES:
                raise InputError(f"{path} must hold at most {MAX_BYTES} bytes, its header says {wanted}; {remedy}")
            content = _read_at_most(file, wanted + 1)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; put the four IDX files of the data set into that folder, "
            "or run 'lesson data fashion-mnist' to download those of Fashion-MNIST"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}); {remedy}") from None
    if len(content) != wanted:
        got = f"got {len(content)}" if len(content) < wanted else "got more"
        raise InputError(f"{path} must hold {wanted} bytes after its header, {got}; {remedy}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _read_at_most(file: gzip.GzipFile, num_bytes: int) -> bytearray:
    """Read `num_bytes` or up to the end. Memory grows with the actual content, not with the size in the header."""
    content = bytearray()
    while part := file.read(min(num_bytes - len(content), CHUNK_BYTES)):
        content += part
    return content
