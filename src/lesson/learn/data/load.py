"""Data sets by name, and the folder that they are read from."""

import os
from collections.abc import Callable
from pathlib import Path

from lesson.core.errors import unknown
from lesson.learn.data.cifar import CIFAR10, CIFAR100
from lesson.learn.data.femnist import read_femnist
from lesson.learn.data.idx import read_idx_folder
from lesson.learn.data.samples import Samples

DATA_DIR_VARIABLE = "LESSON_DATA_DIR"
MNIST_DIR = Path(__file__).parent / "mnist"
READERS: dict[str, Callable[[Path], Samples]] = {
    "mnist": lambda _: read_idx_folder(MNIST_DIR),
    "fashion-mnist": lambda folder: read_idx_folder(folder / "fashion-mnist"),
    "cifar10": CIFAR10.read,
    "cifar100": CIFAR100.read,
    "femnist": read_femnist,
}
"""Data sets of images. The functions take the folder of data sets."""


def data_dir(given: Path | str | None = None) -> Path:
    """Return the folder of data sets: the given one, else LESSON_DATA_DIR, else a folder in the user's cache."""
    if given is not None:
        return Path(given)
    if DATA_DIR_VARIABLE in os.environ:
        return Path(os.environ[DATA_DIR_VARIABLE])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lesson"


def load_samples(name: str, folder: Path | str | None = None) -> Samples:
    """Load a data set of images by name; all except MNIST are read from `data_dir(folder)`."""
    if name not in READERS:
        raise unknown("dataset", name, READERS)
    return READERS[name](data_dir(folder))
