"""CIFAR-100 in its official binary version: records of a coarse label, a fine label and 3 × 32 × 32 bytes."""

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lesson.core.errors import InputError, printable
from lesson.learn.data.samples import Samples

Bytes = npt.NDArray[np.uint8]
FOLDER = "cifar-100-binary"
TRAIN, TEST, NAMES = "train.bin", "test.bin", "fine_label_names.txt"
SHA256 = {
    TRAIN: "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
    TEST: "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
}
RECORDS = {TRAIN: 50_000, TEST: 10_000}
NUM_CLASSES, SHAPE = 100, (3, 32, 32)
RECORD_BYTES = 2 + 3 * 32 * 32


def find_cifar100(folder: Path | str) -> Path:
    """Return the folder that has the files: the given one, or else the official subfolder in it."""
    folder = Path(folder)
    return folder if (folder / TEST).exists() and (folder / NAMES).exists() else folder / FOLDER


def read_cifar100(folder: Path | str) -> Samples:
    """Read the images, as bytes of shape (num, 3, 32, 32), and their fine labels; raise InputError for other files."""
    folder = find_cifar100(folder)
    train_images, train_labels = _read_records(folder / TRAIN)
    test_images, test_labels = _read_records(folder / TEST)
    names = _read_names(folder / NAMES)
    return Samples(train_images, train_labels, test_images, test_labels, None, names)


def _read_records(path: Path) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Return the images and the fine labels of a file; raise InputError unless its SHA-256 is the official one."""
    num_bytes = RECORDS[path.name] * RECORD_BYTES
    content = _read(path)
    if len(content) != num_bytes:
        raise InputError(f"{path} must have {num_bytes} bytes, got {len(content)}; download it again")
    if hashlib.sha256(content).hexdigest() != SHA256[path.name]:
        raise InputError(f"{path} is damaged: its SHA-256 is not the official one; download it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD_BYTES)
    labels = records[:, 1].astype(np.int64)
    return records[:, 2:].reshape(-1, *SHAPE), labels


def _read_names(path: Path) -> tuple[str, ...]:
    """Return the names of the 100 fine labels, one per line of the file."""
    names = _read(path).decode("utf-8", errors="replace").split()
    if len(set(names)) != NUM_CLASSES or len(names) != NUM_CLASSES:
        raise InputError(f"{path} must have {NUM_CLASSES} different names, got {len(set(names))}; download it again")
    return tuple(printable(name) for name in names)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; run 'lesson data cifar100' to download it, or set LESSON_DATA_DIR to its folder"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; download it again") from None
