import lzma
import sqlite3
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from helpers.femnist_files import PIXELS, example, field, leaf_file, varint, write_database, write_leaf
from lesson import InputError
from lesson.learn.data import femnist, tff_emnist
from lesson.learn.data.femnist import CONVERTED, read_femnist
from lesson.learn.data.tff_emnist import convert, parse_example


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    """A folder of data sets with LEAF's files: three writers in two files of training data, one file of test data."""
    write_leaf(tmp_path / "femnist" / "train" / "all_data_0_train_9.json", leaf_file({"f0_00": [3, 61], "f1_01": [10]}))
    write_leaf(tmp_path / "femnist" / "train" / "all_data_1_train_9.json", leaf_file({"f2_02": [36, 0, 9]}))
    write_leaf(tmp_path / "femnist" / "test" / "all_data_0_test_9.json", leaf_file({"f0_00": [1], "f1_01": [2]}))
    return tmp_path


def test_leaf_files_are_read_by_writer(leaf: Path) -> None:
    samples = read_femnist(leaf)
    assert samples.train_targets.tolist() == [3, 61, 10, 36, 0, 9]
    assert samples.test_targets.tolist() == [1, 2]
    assert samples.train_inputs.dtype == np.uint8
    assert samples.train_inputs.shape == (6, 1, 28, 28)
    assert samples.train_inputs[:, 0, 5, 5].tolist() == [3, 61, 10, 36, 0, 9], "pixels are the label / 255"
    assert [own.tolist() for own in samples.clients or []] == [[0, 1], [2], [3, 4, 5]]
    assert len(samples.class_names) == 62
    assert [samples.class_names[label] for label in (0, 9, 10, 35, 36, 61)] == ["0", "9", "A", "Z", "a", "z"]


def test_all_bytes_survive(tmp_path: Path) -> None:
    """LEAF and TensorFlow Federated store k / 255, as 64-bit and as 32-bit floats."""
    content = leaf_file({"one": [7]})
    content["user_data"]["one"]["x"] = [[k % 256 / 255 for k in range(PIXELS)]]
    for part in ("train", "test"):
        write_leaf(tmp_path / "femnist" / part / "a.json", content)
    expected = np.arange(PIXELS) % 256
    np.testing.assert_array_equal(read_femnist(tmp_path).train_inputs.ravel(), expected)
    pixels, label = parse_example(example([k % 256 / 255 for k in range(PIXELS)], 7))
    np.testing.assert_array_equal(pixels, expected)
    assert label == 7


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("users",), None, "'users'"),
        (("user_data", "ann", "y"), [1], "2 images and labels, got 2 and 1"),
        (("user_data", "ann", "x", 1), [0.0] * 783, "784 numbers"),
        (("user_data", "ann", "x", 0, 0), 1.5, "from 0 to 1"),
        (("user_data", "ann", "y", 0), 62, "from 0 to 61"),
    ],
)
def test_damaged_leaf_files_are_named(leaf: Path, place: tuple[str | int, ...], value: object, message: str) -> None:
    content = leaf_file({"ann": [1, 2], "bob": [3]})
    part: Any = content
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    write_leaf(leaf / "femnist" / "train" / "bad.json", content)
    with pytest.raises(InputError, match=f"bad.json.*{message}"):
        read_femnist(leaf)


def test_a_writer_in_two_files_is_rejected_and_one_without_images_left_out(leaf: Path) -> None:
    write_leaf(leaf / "femnist" / "train" / "more.json", leaf_file({"nobody": []}))
    assert len(read_femnist(leaf).clients or []) == 3
    write_leaf(leaf / "femnist" / "train" / "again.json", leaf_file({"f2_02": [1]}))
    with pytest.raises(InputError, match="'f2_02' a second time"):
        read_femnist(leaf)


def test_missing_files(tmp_path: Path, leaf: Path) -> None:
    for path in (leaf / "femnist" / "test").iterdir():
        path.unlink()
    with pytest.raises(InputError, match="test has no JSON files"):
        read_femnist(leaf)
    with pytest.raises(InputError, match=r"femnist.safetensors does not exist"):
        read_femnist(tmp_path / "elsewhere")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A compressed database of two writers."""
    write_database(tmp_path / "source.sqlite", {"ann": [1, 2, 3], "bob": [61, 10]})
    return compressed(tmp_path)


def compressed(folder: Path) -> Path:
    path = folder / "femnist" / "emnist_all.sqlite.lzma"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress((folder / "source.sqlite").read_bytes(), format=lzma.FORMAT_ALONE))
    return path


def test_a_database_is_converted(archive: Path) -> None:
    convert(archive, archive.with_name(CONVERTED))
    samples = read_femnist(archive.parent.parent)
    assert samples.train_targets.tolist() == [1, 2, 3, 61, 10], "rows of a writer are adjacent and in order"
    assert samples.train_inputs.shape == (5, 1, 28, 28)
    assert samples.train_inputs[:, 0, 0, 0].tolist() == [1, 2, 3, 61, 10]
    assert samples.test_targets.tolist() == [1, 61]
    assert [own.tolist() for own in samples.clients or []] == [[0, 1, 2], [3, 4]]
    assert sorted(path.name for path in archive.parent.iterdir()) == [archive.name, CONVERTED]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP TABLE examples", "no such table"),
        ("DELETE FROM examples WHERE split_name = 'all_test'", "all_test"),
        ("UPDATE examples SET serialized_example_proto = x'0a05'", "ends within a field"),
    ],
)
def test_damaged_databases(tmp_path: Path, archive: Path, statement: str, message: str) -> None:
    connection = sqlite3.connect(tmp_path / "source.sqlite")
    with connection:
        connection.execute(statement)
    connection.close()
    with pytest.raises(InputError, match=f"emnist_all.sqlite.lzma .*{message}"):
        convert(compressed(tmp_path), archive.with_name(CONVERTED))
    assert [path.name for path in archive.parent.iterdir()] == [archive.name], "the database is deleted"


def test_archives_that_are_cut_off_or_too_large(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = archive.read_bytes()
    archive.write_bytes(good[: len(good) // 2])
    with pytest.raises(InputError, match=r"emnist_all.sqlite.lzma cannot be converted"):
        convert(archive, archive.with_name(CONVERTED))
    archive.write_bytes(good)
    monkeypatch.setattr(tff_emnist, "DATABASE_BYTES", 5000)
    with pytest.raises(InputError, match="5000 bytes, got more"):
        convert(archive, archive.with_name(CONVERTED))


FLOATS = field(2, field(1, struct.pack(f"<{PIXELS}f", *[0.5] * PIXELS)))
LABEL = field(3, field(1, varint(5)))


def features(**parts: bytes) -> bytes:
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, part)) for name, part in parts.items()))


def test_examples_in_any_order_with_other_features() -> None:
    pixels, label = parse_example(features(label=LABEL, other=field(1, field(1, b"text")), pixels=FLOATS))
    assert set(pixels.tolist()) == {128}
    assert label == 5


@pytest.mark.parametrize(
    "content",
    [
        b"",
        features(pixels=FLOATS),
        features(pixels=FLOATS, label=LABEL)[:-1],
        features(pixels=FLOATS, label=field(3, field(1, varint(62)))),
        features(pixels=field(2, field(1, struct.pack("<f", 1.5) * PIXELS)), label=LABEL),
    ],
)
def test_damaged_examples(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"example|unpack|buffer size"):
        parse_example(content)


def test_damaged_converted_files(archive: Path) -> None:
    path = archive.with_name(CONVERTED)
    convert(archive, path)
    good, arrays = path.read_bytes(), safetensors.numpy.load_file(path)
    arrays["train_sizes"] = np.array([3, 3])
    other = safetensors.numpy.save(arrays, {"sha256": femnist.digest(arrays)})
    for content, message in (
        (good[:-1] + bytes([good[-1] ^ 1]), "SHA-256"),
        (good[:-1], "damaged"),
        (b"", "damaged"),
        (other, "do not fit together"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"femnist.safetensors .*{message}"):
            read_femnist(path.parent.parent)
