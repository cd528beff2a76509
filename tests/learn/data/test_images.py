"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 from their files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from lesson import InputError
from lesson.learn.data import load_samples
from lesson.learn.data.idx import read_idx


def test_mnist_is_the_real_one() -> None:
    data = load_samples("mnist")
    assert data.train_inputs.shape == (60_000, 1, 28, 28)
    assert data.test_inputs.shape == (10_000, 1, 28, 28)
    assert np.bincount(data.train_targets).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.train_targets[:5].tolist() == [5, 0, 4, 1, 9]


def idx_bytes(shape: tuple[int, ...], content: bytes) -> bytes:
    header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return gzip.compress(header + content, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx_bytes((3,), b"ab"), "damaged"),
        (idx_bytes((3,), b"abcd"), "damaged"),
        (gzip.compress(b"x", mtime=0), "not an IDX file"),
        (gzip.compress(bytes([0, 0, 9, 1, 0, 0, 0, 0]), mtime=0), "not an IDX file"),
        (idx_bytes((3,), b"abc")[:-9], "damaged"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "labels.gz").write_bytes(content)
    with pytest.raises(InputError, match=rf"labels.gz .*{message}"):
        read_idx(tmp_path / "labels.gz", num_axes=1)


def test_unknown_and_missing_data_sets(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'mnist'"):
        load_samples("mnits")
    with pytest.raises(InputError, match="run 'lesson data cifar10'"):
        load_samples("cifar10", tmp_path)
