import contextlib
import lzma
import sqlite3
import string
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from helpers.femnist_files import PIXELS, example, leaf_file, write_database, write_leaf
from lesson import InputError
from lesson.learn.data import femnist
from lesson.learn.data.femnist import CONVERTED, read_femnist
from lesson.learn.data.tff_emnist import convert, parse_example


def test_leaf_files_are_read_by_writer(tmp_path: Path) -> None:
    """Two files of training data, one of test data; a writer without images is left out."""
    train, test = (tmp_path / "femnist" / part for part in ("train", "test"))
    write_leaf(train / "all_data_0_train_9.json", leaf_file({"f0_00": [3, 61], "f1_01": [10], "nobody": []}))
    write_leaf(train / "all_data_1_train_9.json", leaf_file({"f2_02": [36, 0, 9]}))
    with pytest.raises(InputError, match="test has no JSON files"):
        read_femnist(tmp_path)
    write_leaf(test / "all_data_0_test_9.json", leaf_file({"f0_00": [1], "f1_01": [2]}))
    samples = read_femnist(tmp_path)
    assert (samples.train_targets.tolist(), samples.test_targets.tolist()) == ([3, 61, 10, 36, 0, 9], [1, 2])
    assert samples.train_inputs.dtype == np.uint8
    assert samples.train_inputs.shape == (6, 1, 28, 28)
    assert samples.train_inputs[:, 0, 5, 5].tolist() == [3, 61, 10, 36, 0, 9], "pixels are the label / 255"
    assert [own.tolist() for own in samples.clients or []] == [[0, 1], [2], [3, 4, 5]]
    assert "".join(samples.class_names) == string.digits + string.ascii_uppercase + string.ascii_lowercase
    write_leaf(train / "bad.json", leaf_file({"ann": [62]}))
    with pytest.raises(InputError, match=r"bad.json.*from 0 to 61"):
        read_femnist(tmp_path)
    write_leaf(train / "bad.json", leaf_file({"f2_02": [1]}))
    with pytest.raises(InputError, match="'f2_02' a second time"):
        read_femnist(tmp_path)


def compressed(folder: Path) -> Path:
    path = folder / "femnist" / "emnist_all.sqlite.lzma"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress((folder / "source.sqlite").read_bytes(), format=lzma.FORMAT_ALONE))
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A compressed database of two writers."""
    write_database(tmp_path / "source.sqlite", {"ann": [1, 2, 3], "bob": [61, 10]})
    return compressed(tmp_path)


def test_database_is_converted(archive: Path) -> None:
    convert(archive, archive.with_name(CONVERTED))
    samples = read_femnist(archive.parent.parent)
    assert samples.train_targets.tolist() == [1, 2, 3, 61, 10], "rows of a writer are adjacent and in order"
    assert samples.train_inputs.shape == (5, 1, 28, 28)
    assert samples.train_inputs[:, 0, 0, 0].tolist() == [1, 2, 3, 61, 10]
    assert samples.test_targets.tolist() == [1, 61]
    assert [own.tolist() for own in samples.clients or []] == [[0, 1, 2], [3, 4]]
    assert sorted(path.name for path in archive.parent.iterdir()) == [archive.name, CONVERTED]


def test_damaged_archives_are_named(tmp_path: Path, archive: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "source.sqlite")) as connection, connection:
        connection.execute("UPDATE examples SET serialized_example_proto = x'0a05'")
    with pytest.raises(InputError, match=r"emnist_all.sqlite.lzma .*ends within a field"):
        convert(compressed(tmp_path), archive.with_name(CONVERTED))
    assert [path.name for path in archive.parent.iterdir()] == [archive.name], "the database is deleted"
    archive.write_bytes(archive.read_bytes()[:500])
    with pytest.raises(InputError, match=r"emnist_all.sqlite.lzma cannot be converted"):
        convert(archive, archive.with_name(CONVERTED))


def test_pixels_and_labels_of_an_example() -> None:
    """Every byte k is stored as the float k / 255."""
    pixels, label = parse_example(example([k % 256 / 255 for k in range(PIXELS)], 7))
    assert (pixels.tolist(), label) == ([k % 256 for k in range(PIXELS)], 7)
    for wrong in (b"", example([0.5] * PIXELS, 62), example([1.5] * PIXELS, 7), example([0.5] * 783, 7)):
        with pytest.raises(ValueError, match="example"):
            parse_example(wrong)


def test_missing_and_damaged_converted_files_are_named(archive: Path) -> None:
    with pytest.raises(InputError, match=r"femnist.safetensors does not exist"):
        read_femnist(archive.parent.parent)
    path = archive.with_name(CONVERTED)
    convert(archive, path)
    good, arrays = path.read_bytes(), safetensors.numpy.load_file(path)
    arrays["train_sizes"] = np.array([3, 3])
    other = safetensors.numpy.save(arrays, {"sha256": femnist.digest(arrays)})
    for content, message in (
        (good[:-1] + bytes([good[-1] ^ 1]), "SHA-256"),
        (good[:-1], "damaged"),
        (other, "do not fit together"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"femnist.safetensors .*{message}"):
            read_femnist(path.parent.parent)
