"""A small copy of FEMNIST in the format of TensorFlow Federated's SQLite database."""

import contextlib
import sqlite3
import struct
from pathlib import Path

PIXELS = 784


def varint(number: int) -> bytes:
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def field(number: int, content: bytes) -> bytes:
    """A field of bytes in a protocol buffer."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(pixels: list[float], label: int) -> bytes:
    """A serialized tf.train.Example."""
    floats = field(2, field(1, struct.pack(f"<{len(pixels)}f", *pixels)))
    integers = field(3, field(1, varint(label)))
    features = {b"label": integers, b"pixels": floats}
    return field(1, b"".join(field(1, field(1, name) + field(2, feature)) for name, feature in features.items()))


def write_database(path: Path, labels: dict[str, list[int]]) -> None:
    """Write a database with images of these labels by writer, and one test image per writer.

    All pixels of an image are its label divided by 255. Rows of writers alternate, and digits are there on their own.
    """
    rows = [
        ("all_train", writer, example([own[place] / 255] * PIXELS, own[place]))
        for place in range(max(map(len, labels.values())))
        for writer, own in reversed(labels.items())
        if place < len(own)
    ]
    rows += [("all_test", writer, example([0.0] * PIXELS, own[0])) for writer, own in labels.items()]
    rows += [("digits_only_train", "someone else", example([1.0] * PIXELS, 7))]
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
            "serialized_example_proto BLOB NOT NULL)"
        )
        connection.execute("CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id)")
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
