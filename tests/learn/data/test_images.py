"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 from their files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from lesson import InputError
from lesson.learn.data import Dataset, cifar10, cifar100, load_dataset
from lesson.learn.data.cifar100 import read_cifar100
from lesson.learn.data.dataset import data_dir
from lesson.learn.data.idx import read_idx


def needs(path: Path, name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not path.exists(), reason=f"the data is not here; 'lesson data {name}' gets it")


def test_mnist_is_the_real_one() -> None:
    data = load_dataset("mnist")
    assert data.train_images.shape == (60_000, 1, 28, 28)
    assert data.test_images.shape == (10_000, 1, 28, 28)
    assert np.bincount(data.train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.num_classes == 10


@needs(cifar10.find_cifar10(data_dir()), "cifar10")
def test_cifar10_is_the_real_one() -> None:
    data = load_dataset("cifar10")
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10


@needs(cifar100.find_cifar100(data_dir()), "cifar100")
def test_cifar100_is_the_real_one() -> None:
    samples = read_cifar100(data_dir())
    assert samples.train_inputs.shape == (50_000, 3, 32, 32)
    assert np.bincount(samples.train_targets).tolist() == [500] * 100
    assert samples.class_names[:2] == ("apple", "aquarium_fish")


def idx_bytes(shape: tuple[int, ...], content: bytes) -> bytes:
    header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return gzip.compress(header + content, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx_bytes((3,), b"ab"), "3 bytes.* got 2"),
        (idx_bytes((3,), b"abcd"), "3 bytes.* got more"),
        (idx_bytes((47_040_001,), b""), "at most 47040000 bytes"),
        (gzip.compress(b"x", mtime=0), "not an IDX file"),
        (idx_bytes((3,), b"abc")[:-9], "damaged"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "labels.gz").write_bytes(content)
    with pytest.raises(InputError, match=rf"labels.gz .*{message}"):
        read_idx(tmp_path / "labels.gz", num_axes=1)


def test_unknown_missing_and_wrong_data_sets(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'mnist'"):
        load_dataset("mnits")
    with pytest.raises(InputError, match="run 'lesson data cifar10'"):
        load_dataset("cifar10", tmp_path)
    images, labels = np.zeros((4, 1, 2, 2), np.uint8), np.zeros(4, np.int64)
    with pytest.raises(InputError, match="train_images"):
        Dataset("mine", images.astype(float), labels, images, labels)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="test_labels"):
        Dataset("mine", images, labels, images, labels[:3])
