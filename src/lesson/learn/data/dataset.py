"""Data sets: the class, and those that can be loaded by name."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError, unknown
from lesson.learn.data.cifar10 import read_cifar10
from lesson.learn.data.idx import read_idx_folder

DATA_DIR_VARIABLE = "LESSON_DATA_DIR"
MNIST_DIR = Path(__file__).parent / "mnist"
NAMES = ("mnist", "cifar10", "fashion-mnist")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Your own images and labels, for `lesson.run` and `lesson.compare`. Models get the images scaled to [0, 1].

    Attributes:
        name: Name of the data set in settings, results and reports.
        train_images: Training images as bytes (uint8), shape (num, channels, height, width).
        train_labels: Training labels as integers from 0, shape (num,).
        test_images: Test images, of the same type.
        test_labels: Test labels, of the same type.

    Raises:
        InputError: An array has the wrong type or shape.
    """

    name: str
    train_images: npt.NDArray[np.uint8]
    train_labels: IntArray
    test_images: npt.NDArray[np.uint8]
    test_labels: IntArray

    def __post_init__(self) -> None:
        for part, images, labels in (
            ("train", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if images.dtype != np.uint8 or images.ndim != 4:
                got = f"{images.dtype} of shape {images.shape}"
                raise InputError(f"{part}_images must be uint8 of shape (num, channels, height, width), got {got}")
            if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
                got = f"{labels.dtype} of shape {labels.shape}"
                raise InputError(f"{part}_labels must be integers of shape ({len(images)},), got {got}")
            if not len(images) or labels.min() < 0:
                raise InputError(f"{part}_labels must not be empty, and all labels must be >= 0")

    @property
    def num_classes(self) -> int:
        """Number of classes: one more than the largest training label."""
        return int(self.train_labels.max()) + 1


def data_dir(given: Path | str | None = None) -> Path:
    """Return the folder of data sets: the given one, else LESSON_DATA_DIR, else a folder in the user's cache."""
    if given is not None:
        return Path(given)
    if DATA_DIR_VARIABLE in os.environ:
        return Path(os.environ[DATA_DIR_VARIABLE])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lesson"


def load_dataset(name: str, folder: Path | str | None = None) -> Dataset:
    """Load a data set by name; all except MNIST are read from `data_dir(folder)`."""
    if name == "mnist":
        return Dataset(name, *read_idx_folder(MNIST_DIR))
    if name == "fashion-mnist":
        return Dataset(name, *read_idx_folder(data_dir(folder) / name))
    if name == "cifar10":
        return Dataset(name, *read_cifar10(data_dir(folder)))
    raise unknown("dataset", name, NAMES)
