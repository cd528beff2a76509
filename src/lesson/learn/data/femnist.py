"""FEMNIST: handwritten digits and letters by writer, 62 classes (Caldas et al., "LEAF", 2018).

Two sources are read: the folders train/ and test/ of JSON files that LEAF's preprocessing writes, and the file that
`lesson data femnist` converts from TensorFlow Federated's copy (3,400 writers, 671,585 training and 77,483 test
images). In both, the background is white: 255.
"""

import functools
import hashlib
import json
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError, printable
from lesson.learn.data.samples import Samples, consecutive

Bytes = npt.NDArray[np.uint8]
FOLDER = "femnist"
TRAIN, TEST = "train", "test"
CONVERTED = "femnist.safetensors"
CLASS_NAMES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
SIDE = 28
MAX_MARKS = 10**6
"""Maximum number of lists, objects and quotes in a JSON file, so that a hostile file does not fill the memory."""
ARRAYS = ("train_images", "train_labels", "train_sizes", "test_images", "test_labels")
"""Arrays of the converted file. `train_sizes` has the number of training images of each writer; they are adjacent."""


def read_femnist(folder: Path | str) -> Samples:
    """Read `femnist/` in a folder of data sets: LEAF's train/ and test/ if they exist, else the converted file.

    Inputs are bytes of shape (num, 1, 28, 28). Every writer with training images is a client.
    """
    folder = Path(folder) / FOLDER
    if (folder / TRAIN).is_dir():
        return _samples(read_leaf(folder / TRAIN), read_leaf(folder / TEST))
    return _read_converted(folder / CONVERTED)


def read_leaf(folder: Path) -> dict[str, tuple[Bytes, IntArray]]:
    """Return the images, shape (num, 784), and the labels of each user in the JSON files of a folder."""
    users: dict[str, tuple[Bytes, IntArray]] = {}
    for path in sorted(folder.glob("*.json")):
        for user, images, labels in _read_users(path):
            if user in users:
                raise InputError(f"{path} has user '{printable(user)}' a second time; remove one of the files")
            users[user] = images, labels
    if not users:
        raise InputError(f"{folder} has no JSON files with images; copy those that LEAF's preprocess.sh writes")
    return users


def _read_users(path: Path) -> Iterator[tuple[str, Bytes, IntArray]]:
    """Yield the name, the images and the labels of each user in one file of LEAF."""
    data = _read_json(path)
    users, sizes, of_users = (data.get(name) for name in ("users", "num_samples", "user_data"))
    if not (isinstance(users, list) and isinstance(sizes, list) and isinstance(of_users, dict)):
        raise InputError(f"{path} must have the lists 'users' and 'num_samples' and the object 'user_data'")
    if len(users) != len(sizes):
        raise InputError(f"{path} must have as many 'num_samples' as 'users', got {len(sizes)} and {len(users)}")
    for user, size in zip(users, sizes, strict=True):
        own = of_users.get(user) if isinstance(user, str) else None
        if not isinstance(own, dict) or not isinstance(own.get("x"), list) or not isinstance(own.get("y"), list):
            raise InputError(f"{path} must have the lists 'x' and 'y' for user '{printable(str(user))}'")
        where = f"{path}: user '{printable(user)}'"
        if not len(own["x"]) == len(own["y"]) == size:
            got = f"got {len(own['x'])} and {len(own['y'])}"
            raise InputError(f"{where} must have {printable(str(size))} images and labels, {got}")
        if own["x"]:
            yield user, _images(own["x"], where), _labels(own["y"], where)


def _images(rows: list[Any], where: str) -> Bytes:
    """Return pixels in [0, 1] as bytes."""
    must = f"{where} must have images of {SIDE * SIDE} numbers from 0 to 1"
    try:
        pixels = np.array(rows, dtype=np.float32)
    except (ValueError, TypeError, OverflowError):
        raise InputError(must) from None
    if pixels.shape != (len(rows), SIDE * SIDE) or not ((pixels >= 0) & (pixels <= 1)).all():
        raise InputError(must)
    return to_bytes(pixels)


def to_bytes(pixels: npt.NDArray[np.float32]) -> Bytes:
    """Return pixels in [0, 1], which are multiples of 1/255 in all copies of the data, as bytes."""
    return np.rint(pixels * 255).astype(np.uint8)


def _labels(values: list[Any], where: str) -> IntArray:
    last = len(CLASS_NAMES) - 1
    if not all(type(value) is int and 0 <= value <= last for value in values):
        raise InputError(f"{where} must have labels from 0 to {last}")
    return np.array(values, dtype=np.int64)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if any(content.count(mark) > MAX_MARKS for mark in (b"[", b"{", b'"')):
        raise InputError(f"{path} must be a file of LEAF, got more than {MAX_MARKS} lists, objects or quotes")
    # Pixels have 256 different values: the cache keeps one object for each value, instead of one per pixel.
    number = functools.lru_cache(1024)(float)
    try:
        data = json.loads(content, parse_float=number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a JSON file of LEAF: {printable(str(error))}; create it again") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} must be a JSON object with 'users', 'num_samples' and 'user_data'")
    return data


def _samples(train: dict[str, tuple[Bytes, IntArray]], test: dict[str, tuple[Bytes, IntArray]]) -> Samples:
    """Return the samples of all users, one after the other."""
    return Samples(
        train_inputs=np.concatenate([images for images, _ in train.values()]).reshape(-1, 1, SIDE, SIDE),
        train_targets=np.concatenate([labels for _, labels in train.values()]),
        test_inputs=np.concatenate([images for images, _ in test.values()]).reshape(-1, 1, SIDE, SIDE),
        test_targets=np.concatenate([labels for _, labels in test.values()]),
        clients=consecutive([len(labels) for _, labels in train.values()]),
        class_names=CLASS_NAMES,
    )


def _read_converted(path: Path) -> Samples:
    """Read the file that `tff_emnist.convert` has written."""
    remedy = "run 'lesson data femnist' to download it"
    try:
        with safetensors.safe_open(path, "numpy") as file:
            told = (file.metadata() or {}).get("sha256")
            arrays = {name: file.get_tensor(name) for name in ARRAYS}
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; {remedy}, or copy LEAF's train/ and test/ to {path.parent}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; {remedy} again") from None
    except safetensors.SafetensorError as error:
        raise InputError(f"{path} is damaged ({printable(str(error))}); {remedy} again") from None
    if told != digest(arrays):
        raise InputError(f"{path} is damaged: its SHA-256 does not match its content; {remedy} again")
    if not _fit(arrays):
        raise InputError(f"{path} is damaged: its arrays do not fit together; {remedy} again")
    return Samples(
        arrays["train_images"],
        arrays["train_labels"].astype(np.int64),
        arrays["test_images"],
        arrays["test_labels"].astype(np.int64),
        consecutive(arrays["train_sizes"].tolist()),
        CLASS_NAMES,
    )


def _fit(arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Return whether images, labels and sizes have the right types and shapes, and labels are valid."""
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.dtype != np.uint8 or labels.dtype != np.uint8 or labels.ndim != 1 or not labels.size:
            return False
        if images.shape != (len(labels), 1, SIDE, SIDE) or labels.max() >= len(CLASS_NAMES):
            return False
    sizes, num = arrays["train_sizes"], len(arrays["train_labels"])
    if sizes.dtype != np.int64 or sizes.ndim != 1 or not sizes.size:
        return False
    return bool(sizes.min() > 0 and sizes.max() <= num and sizes.sum() == num)


def digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the SHA-256 of the arrays of a converted file, as hexadecimal digits."""
    sha256 = hashlib.sha256()
    for name in ARRAYS:
        sha256.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        sha256.update(np.ascontiguousarray(arrays[name]).data)
    return sha256.hexdigest()
