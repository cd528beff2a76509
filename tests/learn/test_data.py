import gzip
import hashlib
import http.server
import shutil
import struct
import tarfile
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lesson import InputError
from lesson.learn.data import Dataset, cifar10, dataset, download, load_dataset
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


@pytest.fixture
def small_cifar10(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An archive like the official one, of ten records a batch."""
    monkeypatch.setattr(cifar10, "RECORDS", 10)
    rng = np.random.default_rng(0)
    folder = tmp_path / "source" / cifar10.FOLDER
    folder.mkdir(parents=True)
    checks = {}
    for name in cifar10.SHA256:
        records = rng.integers(0, 256, (10, cifar10.RECORD_BYTES), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
        checks[name] = hashlib.sha256(records.tobytes()).hexdigest()
    for module in (cifar10, download):
        monkeypatch.setattr(module, "SHA256", checks)
    archive = tmp_path / "source" / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, cifar10.FOLDER)
    monkeypatch.setattr(download, "ARCHIVE_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    return archive


@pytest.fixture
def server(small_cifar10: Path) -> Iterator[tuple[str, list[str]]]:
    """A server on this machine that breaks off the first transfer halfway and then serves ranges, except of whole/."""
    content, ranges = small_cifar10.read_bytes(), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            ranges.append(asked)
            asked = "" if self.path.startswith("/whole/") else asked
            begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
            if begin == len(content):
                self.send_error(416)
                return
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(len(content) - begin))
            self.end_headers()
            self.wfile.write(content[begin : len(content) // 2 if len(ranges) == 1 else len(content)])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/cifar-10-binary.tar.gz", ranges
        running.shutdown()
        thread.join()


def test_a_download_resumes_where_it_stopped(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    url, ranges = server
    with pytest.raises(InputError, match=r"cannot be downloaded .*; run the command again to resume"):
        download.get_cifar10(tmp_path / "data", url)
    folder = download.get_cifar10(tmp_path / "data", url)
    assert ranges[0] == ""
    assert int(ranges[1].removeprefix("bytes=").removesuffix("-")) > 0
    assert sorted(path.name for path in folder.iterdir()) == sorted(cifar10.SHA256)
    assert load_dataset("cifar10", tmp_path / "data").train_images.shape == (50, 3, 32, 32)
    assert download.get_cifar10(tmp_path / "data", "http://127.0.0.1:9/none") == folder, "what is there is used"


@pytest.mark.parametrize("server_has_ranges", [True, False])
def test_a_download_may_begin_with_any_part(
    tmp_path: Path, small_cifar10: Path, server: tuple[str, list[str]], server_has_ranges: bool
) -> None:
    """All of it, as if interrupted at the very end; or a part of which the server does not send the rest alone."""
    url, ranges = server
    ranges.append("served before")
    (tmp_path / "data").mkdir()
    content = small_cifar10.read_bytes()
    part = tmp_path / "data" / "cifar-10-binary.tar.gz.part"
    part.write_bytes(content if server_has_ranges else content[:100])
    url = url if server_has_ranges else f"{url.rpartition('/')[0]}/whole/cifar-10-binary.tar.gz"
    download.get_cifar10(tmp_path / "data", url)
    assert ranges[1] == f"bytes={len(content) if server_has_ranges else 100}-"
    assert [path.name for path in (tmp_path / "data").iterdir()] == [cifar10.FOLDER]


def test_a_damaged_archive_is_not_unpacked_and_not_kept(
    tmp_path: Path, server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, ranges = server
    ranges.append("served before")
    with monkeypatch.context() as other:
        other.setattr(download, "ARCHIVE_SHA256", "0" * 64)
        with pytest.raises(InputError, match=r"is damaged: its SHA-256 is not the official one; run the command again"):
            download.get_cifar10(tmp_path / "data", url)
    assert list((tmp_path / "data").iterdir()) == []
    download.get_cifar10(tmp_path / "data", url)
    assert ranges[1:] == ["", ""]


@pytest.mark.parametrize("inner", ["", cifar10.FOLDER])
def test_damaged_files_are_downloaded_again(tmp_path: Path, server: tuple[str, list[str]], inner: str) -> None:
    url, ranges = server
    ranges.append("served before")
    folder = download.get_cifar10(tmp_path / "data", url)
    (tmp_path / "data" / inner / "test_batch.bin").write_bytes(b"short")
    assert download.get_cifar10(tmp_path / "data", url) == folder
    load_dataset("cifar10", tmp_path / "data")


def test_damaged_batches_are_named(tmp_path: Path, small_cifar10: Path) -> None:
    folder = small_cifar10.parent / cifar10.FOLDER
    batch = folder / "data_batch_3.bin"
    good = batch.read_bytes()
    batch.write_bytes(good[:-1])
    with pytest.raises(InputError, match=r"data_batch_3.bin must have 30730 bytes, got 30729; download it again"):
        load_dataset("cifar10", folder)
    batch.write_bytes(b"\x01" + good[1:] if good[0] != 1 else b"\x02" + good[1:])
    with pytest.raises(InputError, match=r"data_batch_3.bin is damaged: its SHA-256 is not the official one"):
        load_dataset("cifar10", folder)
