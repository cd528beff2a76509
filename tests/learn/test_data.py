import gzip
import shutil
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from lesson import InputError
from lesson.learn.data import Dataset, cifar10, dataset, load_dataset
from lesson.learn.data.idx import FILES, read_idx

needs_cifar10 = pytest.mark.skipif(
    not cifar10.find_cifar10(dataset.data_dir()).exists(), reason="CIFAR-10 is not here; 'lesson data cifar10' gets it"
)


def test_mnist_is_the_real_one() -> None:
    data = load_dataset("mnist")
    assert data.train_images.shape == (60_000, 1, 28, 28)
    assert data.test_images.shape == (10_000, 1, 28, 28)
    assert np.bincount(data.train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.num_classes == 10


@needs_cifar10
def test_cifar10_is_the_real_one() -> None:
    data = load_dataset("cifar10")
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10


def idx_header(*shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


def idx_bytes(shape: tuple[int, ...], content: bytes) -> bytes:
    return gzip.compress(idx_header(*shape) + content, mtime=0)  # names of tests have it: processes must make the same


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx_bytes((3,), b"ab"), "must hold 3 bytes after its header, got 2; download the file again"),
        (idx_bytes((3,), b"abcd"), "must hold 3 bytes after its header, got more"),
        (idx_bytes((1, 2), b"ab"), "is not an IDX file of bytes with 1 axes"),
        (gzip.compress(b"x", mtime=0), "is not an IDX file"),
        (idx_bytes((3,), b"abc")[:-9], "is damaged"),
        (b"not gzip at all", "is damaged"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "labels.gz").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_idx(tmp_path / "labels.gz", num_axes=1)
    assert "labels.gz" in str(caught.value)


def test_fashion_mnist_is_read_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "fashion-mnist"
    shutil.copytree(dataset.MNIST_DIR, folder)
    monkeypatch.setenv("LESSON_DATA_DIR", str(tmp_path))
    assert load_dataset("fashion-mnist").train_images.shape == (60_000, 1, 28, 28)
    (folder / FILES[1]).unlink()
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte.gz does not exist; put the four IDX files"):
        load_dataset("fashion-mnist")
    shutil.copy(dataset.MNIST_DIR / FILES[3], folder / FILES[1])
    with pytest.raises(InputError, match=r"must have 60000 labels, one per image, got 10000"):
        load_dataset("fashion-mnist")


def test_unknown_and_missing_data_sets(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown dataset 'mnits'; did you mean 'mnist'"):
        load_dataset("mnits")
    with pytest.raises(InputError, match=r"data_batch_1.bin does not exist; run 'lesson data cifar10' to download it"):
        load_dataset("cifar10", tmp_path)


@pytest.mark.parametrize("promised", [28, 10_000, 2**32 - 1])
def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promised: int) -> None:
    """The header promises so many rows of 28 × 28; 64 MB of zeros follow."""
    read, unpacked = gzip.GzipFile.read, 0

    def count(self: gzip.GzipFile, size: int | None = -1) -> bytes:
        nonlocal unpacked
        content = read(self, size)
        unpacked += len(content)
        return content

    with gzip.open(tmp_path / "images.gz", "wb", 1) as file:
        file.write(bytes([0, 0, 8, 3]) + struct.pack(">3I", promised, 28, 28) + bytes(1 << 26))
    monkeypatch.setattr(gzip.GzipFile, "read", count)
    with pytest.raises(InputError, match="download the file again"):
        read_idx(tmp_path / "images.gz", 3)
    assert unpacked <= 20 + promised * 28 * 28


def test_more_images_than_any_data_set_has_are_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "images.gz").write_bytes(idx_bytes((60_001, 28, 28), b""))
    said = "must hold at most 47040000 bytes, its header says 47040784; download the file again"
    with pytest.raises(InputError, match=said):
        read_idx(tmp_path / "images.gz", 3)


def test_images_are_read_without_a_second_copy(tmp_path: Path) -> None:
    """40 million bytes, of which a list of parts and their sum would take 80."""
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx_header(40_000, 1000, 1) + bytes(40_000_000), 1))
    tracemalloc.start()
    images = read_idx(tmp_path / "images.gz", 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert images.shape == (40_000, 1000, 1)
    assert peak < 60_000_000


def test_a_gzip_bomb_without_a_header_is_not_unpacked(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "images.gz", "wb", 1) as file:
        file.write(bytes(1 << 26))
    tracemalloc.start()
    with pytest.raises(InputError, match="is not an IDX file"):
        read_idx(tmp_path / "images.gz", 3)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_arrays_of_a_custom_data_set_are_checked() -> None:
    images, labels = np.zeros((4, 1, 2, 2), np.uint8), np.zeros(4, np.int64)
    Dataset("mine", images, labels, images, labels)
    with pytest.raises(InputError, match=r"train_images must be uint8 of shape .* got float64 of shape \(4, 1, 2, 2\)"):
        Dataset("mine", images.astype(float), labels, images, labels)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"test_labels must be integers of shape \(4,\), got int64"):
        Dataset("mine", images, labels, images, labels[:3])
