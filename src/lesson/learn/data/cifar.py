"""CIFAR-10 and CIFAR-100 in their official binary versions: records of one or two labels and 3 × 32 × 32 bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError
from lesson.learn.data.samples import Samples, read_verified

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
NUM_NAMES = 100


@dataclass(frozen=True)
class Cifar:
    """The files of one of the two data sets.

    Attributes:
        name: Name for `lesson data`.
        folder: Folder of the files in the official archive.
        train: SHA-256 of each file with training samples.
        test: SHA-256 of each file with test samples.
        num_labels: Number of labels of a record; the last one is the class.
        class_names: File with the name of each class; empty if it is not read.
    """

    name: str
    folder: str
    train: Mapping[str, str]
    test: Mapping[str, str]
    num_labels: int
    class_names: str = ""

    @property
    def files(self) -> list[str]:
        """Names of all files that are read."""
        return [*self.train, *self.test, *([self.class_names] if self.class_names else [])]

    def read(self, folder: Path) -> Samples:
        """Read the images in a folder of data sets, as bytes of shape (num, 3, 32, 32), and their classes.

        Raises InputError if a file is missing or is not the official one.
        """
        folder /= self.folder
        samples = (*self._records(folder, self.train), *self._records(folder, self.test))
        return Samples(*samples, class_names=_read_names(folder / self.class_names) if self.class_names else ())

    def _records(self, folder: Path, files: Mapping[str, str]) -> tuple[npt.NDArray[np.uint8], IntArray]:
        content = b"".join(read_verified(folder / name, sha256, self.name) for name, sha256 in files.items())
        records = np.frombuffer(content, np.uint8).reshape(-1, self.num_labels + PIXELS)
        labels = records[:, self.num_labels - 1].astype(np.int64)
        return records[:, self.num_labels :].reshape(-1, *SHAPE), labels


def _read_names(path: Path) -> tuple[str, ...]:
    names = path.read_text(encoding="utf-8", errors="replace").split() if path.exists() else []
    if len(set(names)) != NUM_NAMES:
        remedy = "run 'lesson data cifar100' to download it again"
        raise InputError(f"{path} must have {NUM_NAMES} different names, got {len(set(names))}; {remedy}")
    return tuple(names)


CIFAR10 = Cifar(
    "cifar10",
    "cifar-10-batches-bin",
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    },
    {"test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"},
    num_labels=1,
)
CIFAR100 = Cifar(
    "cifar100",
    "cifar-100-binary",
    {"train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"},
    {"test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"},
    num_labels=2,
    class_names="fine_label_names.txt",
)
