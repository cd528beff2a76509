import hashlib
from pathlib import Path

import numpy as np
import pytest

from lesson import InputError
from lesson.learn.data import cifar100
from lesson.learn.data.cifar100 import NAMES, RECORD_BYTES, TEST, TRAIN, read_cifar100
from lesson.learn.data.dataset import data_dir

needs_cifar100 = pytest.mark.skipif(
    not cifar100.find_cifar100(data_dir()).exists(), reason="CIFAR-100 is not here; 'lesson data cifar100' gets it"
)


@needs_cifar100
def test_the_official_cifar100_is_read() -> None:
    samples = read_cifar100(data_dir())
    assert samples.train_inputs.shape == (50_000, 3, 32, 32)
    assert np.bincount(samples.train_targets).tolist() == [500] * 100
    assert np.bincount(samples.test_targets).tolist() == [100] * 100
    assert samples.class_names[:2] == ("apple", "aquarium_fish")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data sets with three training records and one test record."""
    inner = tmp_path / cifar100.FOLDER
    inner.mkdir()
    records = {
        TRAIN: b"".join(bytes([19, fine]) + bytes([fine] * 1024 + [1] * 1024 + [2] * 1024) for fine in (0, 50, 99)),
        TEST: bytes([3, 42]) + bytes(3072),
    }
    for name, content in records.items():
        (inner / name).write_bytes(content)
    (inner / NAMES).write_text("".join(f"class_{number}\n" for number in range(100)) + "\n")
    monkeypatch.setattr(cifar100, "RECORDS", {TRAIN: 3, TEST: 1})
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in records.items()}
    monkeypatch.setattr(cifar100, "SHA256", sha256)
    return tmp_path


def test_fine_labels_and_planes_of_color(folder: Path) -> None:
    """A record is a coarse label, a fine label, and 1,024 bytes each of red, green and blue."""
    samples = read_cifar100(folder)
    assert samples.train_targets.tolist() == [0, 50, 99]
    assert samples.test_targets.tolist() == [42]
    assert samples.train_inputs.dtype == np.uint8
    assert samples.train_inputs.shape == (3, 3, 32, 32)
    assert [np.unique(plane).tolist() for plane in samples.train_inputs[1]] == [[50], [1], [2]]
    assert samples.clients is None
    assert samples.class_names[42] == "class_42"
    inner = read_cifar100(folder / cifar100.FOLDER)
    np.testing.assert_array_equal(inner.train_inputs, samples.train_inputs)


def test_damaged_files_are_named(folder: Path) -> None:
    train = folder / cifar100.FOLDER / TRAIN
    good = train.read_bytes()
    train.write_bytes(good[:-1])
    with pytest.raises(InputError, match=rf"train.bin must have {3 * RECORD_BYTES} bytes, got {3 * RECORD_BYTES - 1}"):
        read_cifar100(folder)
    train.write_bytes(good + b"x")
    with pytest.raises(InputError, match=r"train.bin cannot be read: it must have at most 9222 bytes, got 9223"):
        read_cifar100(folder)
    train.write_bytes(b"\x00" + good[1:])
    with pytest.raises(InputError, match=r"train.bin is damaged: its SHA-256 is not the official one; download it"):
        read_cifar100(folder)
    train.unlink()
    with pytest.raises(InputError, match=r"train.bin does not exist; run 'lesson data cifar100' to download it"):
        read_cifar100(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must have 100 different names, got 0; download it again"),
        (b"apple\n" * 100, "must have 100 different names, got 1"),
        (b"\xff" * 20_000, "cannot be read: it must have at most 10000 bytes"),
    ],
)
def test_damaged_class_names(folder: Path, content: bytes, message: str) -> None:
    (folder / cifar100.FOLDER / NAMES).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_cifar100(folder)
