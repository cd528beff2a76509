"""CIFAR-10 in its official binary version: six files of 10,000 records, each a label and 3 × 32 × 32 bytes."""

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError

Bytes = npt.NDArray[np.uint8]
FOLDER = "cifar-10-batches-bin"
TEST_BATCH = "test_batch.bin"
SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    TEST_BATCH: "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
RECORDS, SHAPE = 10_000, (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32


def find_cifar10(folder: Path | str) -> Path:
    """Return the folder that has the files: the given one, or else the official subfolder in it."""
    folder = Path(folder)
    return folder if (folder / TEST_BATCH).exists() else folder / FOLDER


def read_cifar10(folder: Path | str) -> tuple[Bytes, IntArray, Bytes, IntArray]:
    """Return training images, training labels, test images and test labels."""
    batches = [_read_batch(find_cifar10(folder) / name) for name in SHA256]
    images = np.concatenate([batch[:, 1:] for batch in batches]).reshape(-1, *SHAPE)
    labels = np.concatenate([batch[:, 0] for batch in batches]).astype(np.int64)
    num_train = RECORDS * (len(SHA256) - 1)
    return images[:num_train], labels[:num_train], images[num_train:], labels[num_train:]


def _read_batch(path: Path) -> Bytes:
    """Return the records of a file, shape (10000, 3073); raise InputError unless its SHA-256 is the official one."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; run 'lesson data cifar10' to download it, or set LESSON_DATA_DIR to its folder"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) != RECORDS * RECORD_BYTES:
        raise InputError(f"{path} must have {RECORDS * RECORD_BYTES} bytes, got {len(content)}; download it again")
    if hashlib.sha256(content).hexdigest() != SHA256[path.name]:
        raise InputError(f"{path} is damaged: its SHA-256 is not the official one; download it again")
    return np.frombuffer(content, np.uint8).reshape(RECORDS, RECORD_BYTES)
