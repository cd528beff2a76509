"""The IDX format of MNIST and Fashion-MNIST: gzip files with a header of big-endian sizes, followed by bytes."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lesson.core.errors import InputError
from lesson.learn.data.samples import Samples

Bytes = npt.NDArray[np.uint8]
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
UNSIGNED_BYTE = 8


def read_idx_folder(folder: Path) -> Samples:
    """Read the four files in a folder. Inputs are bytes of shape (num, 1, height, width)."""
    train_images, train_labels, test_images, test_labels = (
        read_idx(folder / name, num_axes=3 if "images" in name else 1) for name in FILES
    )
    return Samples(
        train_images[:, None], train_labels.astype(np.int64), test_images[:, None], test_labels.astype(np.int64)
    )


def read_idx(path: Path, num_axes: int) -> Bytes:
    """Return the array in a file; raise InputError unless it matches its header."""
    try:
        with gzip.open(path) as file:
            content = file.read()
        if content[:4] != bytes([0, 0, UNSIGNED_BYTE, num_axes]):
            raise ValueError(f"it is not an IDX file of bytes with {num_axes} axes")
        shape = struct.unpack_from(f">{num_axes}I", content, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * num_axes).reshape(shape)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; put the four IDX files of the data set into that folder, "
            "or run 'lesson data fashion-mnist' to download those of Fashion-MNIST"
        ) from None
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}); download the file again") from None
