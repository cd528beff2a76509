import lzma
import string
from pathlib import Path

import pytest

from helpers.femnist_files import PIXELS, example, write_database
from lesson import InputError
from lesson.learn.data.femnist import CONVERTED, convert, parse_example, read_femnist


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
    assert "".join(samples.class_names) == string.digits + string.ascii_uppercase + string.ascii_lowercase
    assert samples.train_inputs[:, 0, 0, 0].tolist() == [1, 2, 3, 61, 10]
    assert samples.test_targets.tolist() == [1, 61]
    assert [own.tolist() for own in samples.clients or []] == [[0, 1, 2], [3, 4]]
    assert sorted(path.name for path in archive.parent.iterdir()) == [archive.name, CONVERTED]


def test_pixels_and_labels_of_an_example() -> None:
    """Every byte k is stored as the float k / 255."""
    pixels, label = parse_example(example([k % 256 / 255 for k in range(PIXELS)], 7))
    assert (pixels.tolist(), label) == ([k % 256 for k in range(PIXELS)], 7)


def test_missing_and_damaged_converted_files_are_named(archive: Path) -> None:
    with pytest.raises(InputError, match=r"femnist.safetensors does not exist"):
        read_femnist(archive.parent.parent)
    path = archive.with_name(CONVERTED)
    convert(archive, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"femnist.safetensors cannot be read"):
        read_femnist(path.parent.parent)
