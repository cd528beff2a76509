import json
import lzma
import sqlite3
import struct
import tracemalloc
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


def test_pixels_of_a_file_share_their_objects(tmp_path: Path) -> None:
    """Two million floats as objects of their own would take 64 MB, the list 16 MB."""
    path = tmp_path / "femnist" / "train" / "a.json"
    write_leaf(path, leaf_file({"one": [0] * 2551}))
    tracemalloc.start()
    assert len(femnist.read_leaf(path.parent)["one"][1]) == 2551
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * path.stat().st_size + 40_000_000, "the bytes, the text, the list and the arrays of 2 MB and 8 MB"


ANN = ("user_data", "ann")
IMAGES = "user 'ann' must have images of 784 numbers from 0 to 1"
LABELS = "user 'ann' must have labels from 0 to 61"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("users",), None, "must have the lists 'users' and 'num_samples' and the object 'user_data'"),
        (("num_samples",), [2], "must have as many 'num_samples' as 'users', got 1 and 2"),
        (("user_data", "bob"), None, "must have the lists 'x' and 'y' for user 'bob'"),
        (("users", 0), ["ann"], r"must have the lists 'x' and 'y' for user '\['ann'\]'"),
        ((*ANN, "x"), "pixels", "must have the lists 'x' and 'y' for user 'ann'"),
        ((*ANN, "y"), [1], "user 'ann' must have 2 images and labels, got 2 and 1"),
        (("num_samples", 0), 3, "user 'ann' must have 3 images and labels, got 2 and 2"),
        ((*ANN, "x", 1), [0.0] * 783, IMAGES),
        ((*ANN, "x"), [[0.0] * 785] * 2, IMAGES),
        ((*ANN, "x", 0, 0), "dark", IMAGES),
        ((*ANN, "x", 0, 0), None, IMAGES),
        ((*ANN, "x", 0, 0), [0.0], IMAGES),
        ((*ANN, "x", 0, 0), 1.5, IMAGES),
        ((*ANN, "x", 0, 0), float("nan"), IMAGES),
        ((*ANN, "x", 0, 0), 10**400, IMAGES),
        ((*ANN, "y", 0), 62, LABELS),
        ((*ANN, "y", 0), -1, LABELS),
        ((*ANN, "y", 0), 10**30, LABELS),
        ((*ANN, "y", 0), 1.0, LABELS),
    ],
)
def test_damaged_leaf_files(leaf: Path, place: tuple[str | int, ...], value: object, message: str) -> None:
    content = leaf_file({"ann": [1, 2], "bob": [3]})
    part: Any = content
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    write_leaf(leaf / "femnist" / "train" / "bad.json", content)
    with pytest.raises(InputError, match=message) as caught:
        read_femnist(leaf)
    assert "bad.json" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a JSON file of LEAF"),
        (b"[1]", "must be a JSON object with 'users', 'num_samples' and 'user_data'"),
        (b'{"users": ["a"', "is not a JSON file of LEAF"),
        (b"\xff\xfe\x00", "is not a JSON file of LEAF"),
        (b"[" * 100_000, "is not a JSON file of LEAF"),
        (b'{"users": ' + b"9" * 10_000 + b"}", "is not a JSON file of LEAF"),
        (b"[" + b"[]," * 1_000_001 + b"0]", "got more than 1000000 lists, objects or quotes"),
        (b"[" + b'"",' * 500_001 + b"0]", "got more than 1000000 lists, objects or quotes"),
    ],
    ids=["empty", "a list", "cut", "not text", "deep", "huge number", "many lists", "many texts"],
)
def test_hostile_json(leaf: Path, content: bytes, message: str) -> None:
    (leaf / "femnist" / "train" / "bad.json").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_femnist(leaf)
    assert "bad.json" in str(caught.value)


def test_a_json_file_may_have_half_a_gibibyte(leaf: Path) -> None:
    with (leaf / "femnist" / "train" / "bad.json").open("wb") as file:
        file.truncate((1 << 29) + 1)
    with pytest.raises(InputError, match=r"bad.json cannot be read: it must have at most 536870912 bytes"):
        read_femnist(leaf)


def test_a_writer_in_two_files_is_rejected(leaf: Path) -> None:
    write_leaf(leaf / "femnist" / "train" / "again.json", leaf_file({"f2_02": [1]}))
    with pytest.raises(InputError, match=r"has user 'f2_02' a second time; remove one of the files"):
        read_femnist(leaf)


def test_writers_without_images_are_left_out(leaf: Path) -> None:
    write_leaf(leaf / "femnist" / "train" / "more.json", leaf_file({"nobody": []}))
    assert len(read_femnist(leaf).clients or []) == 3


def test_missing_files(tmp_path: Path, leaf: Path) -> None:
    for path in (leaf / "femnist" / "test").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"test has no JSON files with images; copy those that LEAF's preprocess"):
        read_femnist(leaf)
    with pytest.raises(InputError, match=r"femnist.safetensors does not exist; run 'lesson data femnist' to download"):
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


def change_database(folder: Path, statement: str) -> Path:
    connection = sqlite3.connect(folder / "source.sqlite")
    with connection:
        connection.execute(statement)
    connection.close()
    return compressed(folder)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP TABLE examples", "no such table: examples"),
        ("DELETE FROM examples WHERE split_name = 'all_test'", "it has no examples of the split all_test"),
        ("UPDATE examples SET serialized_example_proto = x'0a05'", "an example ends within a field"),
    ],
)
def test_damaged_databases(tmp_path: Path, archive: Path, statement: str, message: str) -> None:
    with pytest.raises(InputError, match=f"emnist_all.sqlite.lzma cannot be converted: {message}; delete it and"):
        convert(change_database(tmp_path, statement), archive.with_name(CONVERTED))
    assert [path.name for path in archive.parent.iterdir()] == [archive.name], "the database is deleted"


def test_damaged_archives(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = archive.read_bytes()
    for content in (good[: len(good) // 2], b"not lzma at all", b""):
        archive.write_bytes(content)
        with pytest.raises(InputError, match=r"emnist_all.sqlite.lzma cannot be converted"):
            convert(archive, archive.with_name(CONVERTED))
    archive.write_bytes(good)
    monkeypatch.setattr(tff_emnist, "DATABASE_BYTES", 5000)
    with pytest.raises(InputError, match=r"it must hold 5000 bytes, got more"):
        convert(archive, archive.with_name(CONVERTED))
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]


FLOATS = field(2, field(1, struct.pack(f"<{PIXELS}f", *[0.5] * PIXELS)))
LABEL = field(3, field(1, varint(5)))


def features(**parts: bytes) -> bytes:
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, part)) for name, part in parts.items()))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        features(pixels=FLOATS),
        features(pixels=FLOATS, label=b""),
        features(pixels=LABEL, label=LABEL),
        features(pixels=FLOATS[:-4], label=LABEL),
        features(pixels=FLOATS, label=field(3, field(1, varint(62)))),
        features(pixels=FLOATS, label=field(3, field(1, varint(1) + varint(2)))),
        features(pixels=FLOATS, label=field(3, field(1, b"\xff" * 11))),
        features(pixels=field(2, field(1, struct.pack("<f", 0.5) * 783)), label=LABEL),
        features(pixels=field(2, field(1, struct.pack("<f", 1.5) * PIXELS)), label=LABEL),
        features(pixels=field(2, field(1, struct.pack("<f", np.nan) * PIXELS)), label=LABEL),
        features(pixels=FLOATS, label=LABEL)[:-1],
        b"\x0a" + b"\xff" * 8 + b"\x7f",
        b"\x08\x01",
        b"\x0a",
    ],
)
def test_damaged_examples(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"example|unpack|buffer size"):
        parse_example(content)


def test_examples_in_any_order_with_other_features() -> None:
    content = features(label=LABEL, other=field(1, field(1, b"text")), pixels=FLOATS)
    pixels, label = parse_example(content)
    assert set(pixels.tolist()) == {128}
    assert label == 5


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("train_labels", np.array([0, 1, 2, 3, 62], np.uint8)),
        ("train_labels", np.array([0, 1, 2, 3, 4], np.int64)),
        ("train_images", np.zeros((4, 1, 28, 28), np.uint8)),
        ("test_images", np.zeros((2, 784), np.uint8)),
        ("test_labels", np.array(1, np.uint8)),
        ("train_sizes", np.array([3, 3])),
        ("train_sizes", np.array([6, -1])),
        ("train_sizes", np.array([2**62, 2**62])),
        ("train_sizes", np.array([], np.int64)),
    ],
)
def test_arrays_that_do_not_fit(archive: Path, name: str, array: np.ndarray) -> None:
    """A digest can be forged; indices must stay within the images all the same."""
    path = archive.with_name(CONVERTED)
    convert(archive, path)
    arrays = safetensors.numpy.load_file(path)
    arrays[name] = array
    path.write_bytes(safetensors.numpy.save(arrays, {"sha256": femnist.digest(arrays)}))
    with pytest.raises(InputError, match=r"femnist.safetensors is damaged: its arrays do not fit together; run"):
        read_femnist(path.parent.parent)


def test_damaged_converted_files(archive: Path) -> None:
    path = archive.with_name(CONVERTED)
    convert(archive, path)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(InputError, match=r"is damaged: its SHA-256 does not match its content; run 'lesson data"):
        read_femnist(path.parent.parent)
    header = json.dumps({"train_images": {"dtype": "U8", "shape": [2**40], "data_offsets": [0, 2**40]}}).encode()
    for content in (good[:-1], b"", b"\xff" * 100, struct.pack("<Q", len(header)) + header):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"femnist.safetensors is damaged \(.*\); run 'lesson data femnist'"):
            read_femnist(path.parent.parent)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match=r"femnist.safetensors cannot be read: it must have at most 1073741824 bytes"):
        read_femnist(path.parent.parent)
