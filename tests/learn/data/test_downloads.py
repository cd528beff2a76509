"""Downloads from a server on this machine, of small files in the formats of the real ones."""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import lzma
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from helpers.femnist_files import write_database
from lesson import InputError
from lesson.cli import main
from lesson.learn.data import download, drive_tests, femnist, idx, load_samples, shakespeare
from lesson.learn.data.cifar import CIFAR10, CIFAR100, PIXELS, Cifar
from lesson.learn.data.download import Source, get_cifar
from lesson.learn.data.load import MNIST_DIR
from lesson.learn.tasks import load_task


class Server(http.server.ThreadingHTTPServer):
    """Serves ranges of files, except below /whole/; can break off the first transfer or send too much."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges: list[str] = []  # the Range header of each request
        self.breaks_off = False
        self.extra = b""

    def offer(self, name: str, content: bytes) -> Source:
        """Serve a file, and return its source."""
        self.files[name] = content
        sha256 = hashlib.sha256(content).hexdigest()
        return Source(f"http://127.0.0.1:{self.server_port}/{name}", len(content), sha256)


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.server.ranges.append(asked)
        asked = "" if self.path.startswith("/whole/") else asked
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        content = self.server.files.get(Path(self.path).name)
        if content is None:
            self.send_error(404)
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - begin + len(self.server.extra)))
        self.end_headers()
        end = len(content) // 2 if self.server.breaks_off and len(self.server.ranges) == 1 else len(content)
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content[begin:end] + self.server.extra)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def tar_of(folder: str, files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def small(data: Cifar, files: dict[str, bytes]) -> Cifar:
    """Return the data set with other files."""
    train, test = (
        {name: hashlib.sha256(files[name]).hexdigest() for name in names} for names in (data.train, data.test)
    )
    return dataclasses.replace(data, train=train, test=test)


@pytest.fixture
def small_cifar10(server: Server) -> tuple[Cifar, Source]:
    """An archive like the official one, of ten records a batch."""
    records = np.random.default_rng(0).integers(0, 256, (6, 10, 1 + PIXELS), dtype=np.uint8)
    records[:, :, 0] %= 10
    batches = {name: batch.tobytes() for name, batch in zip(CIFAR10.files, records, strict=True)}
    return small(CIFAR10, batches), server.offer("cifar-10-binary.tar.gz", tar_of(CIFAR10.folder, batches))


def test_download_resumes_where_it_stopped(tmp_path: Path, server: Server, small_cifar10: tuple[Cifar, Source]) -> None:
    data, source = small_cifar10
    server.breaks_off = True
    with pytest.raises(InputError, match="cannot be downloaded"):
        get_cifar(tmp_path, data, source)
    folder = get_cifar(tmp_path, data, source)
    assert server.ranges[0] == ""
    assert 0 < int(server.ranges[1].removeprefix("bytes=").removesuffix("-")) <= source.num_bytes // 2
    assert data.read(tmp_path).train_inputs.shape == (50, 3, 32, 32)
    nowhere = dataclasses.replace(source, url="http://127.0.0.1:9/none")
    assert get_cifar(tmp_path, data, nowhere) == folder, "existing files are used"


def test_server_without_ranges_sends_the_whole_file(
    tmp_path: Path, server: Server, small_cifar10: tuple[Cifar, Source]
) -> None:
    data, source = small_cifar10
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(server.files["cifar-10-binary.tar.gz"][:100])
    get_cifar(tmp_path, data, dataclasses.replace(source, url=source.url.replace("/cifar", "/whole/cifar")))
    assert server.ranges == ["bytes=100-"]
    assert [path.name for path in tmp_path.iterdir()] == [data.folder]


def test_damaged_archive_is_not_unpacked_and_not_kept(
    tmp_path: Path, server: Server, small_cifar10: tuple[Cifar, Source]
) -> None:
    data, source = small_cifar10
    with pytest.raises(InputError, match="SHA-256"):
        get_cifar(tmp_path, data, dataclasses.replace(source, sha256="0" * 64))
    assert list(tmp_path.iterdir()) == []
    get_cifar(tmp_path, data, source)
    assert server.ranges == ["", ""]


def test_failed_download_is_reported_in_one_line(tmp_path: Path, server: Server) -> None:
    source = server.offer("input.txt", b"To be, or not to be")
    server.extra = bytes(1 << 22)
    with pytest.raises(InputError, match="SHA-256"):
        download.get_shakespeare(tmp_path, source)
    assert list((tmp_path / "shakespeare").iterdir()) == []
    server.files.clear()
    with pytest.raises(InputError, match=r"input.txt cannot be downloaded"):
        download.get_shakespeare(tmp_path, source)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=r"input.txt cannot be written"):
        download.get_shakespeare(tmp_path / "file", source)


def test_damaged_files_are_named_and_downloaded_again(tmp_path: Path, small_cifar10: tuple[Cifar, Source]) -> None:
    data, source = small_cifar10
    batch = get_cifar(tmp_path, data, source) / "data_batch_3.bin"
    good = batch.read_bytes()
    for content in (good[:-1], bytes([good[0] ^ 1]) + good[1:]):
        batch.write_bytes(content)
        with pytest.raises(InputError, match=r"data_batch_3.bin .*SHA-256"):
            data.read(tmp_path)
        get_cifar(tmp_path, data, source)
        data.read(tmp_path)


def test_cifar100_is_downloaded_and_read(tmp_path: Path, server: Server) -> None:
    """A record is a coarse label, a fine label, and 1,024 bytes each of red, green and blue."""
    files = {
        "train.bin": b"".join(bytes([19, fine, *[fine] * 1024, *[1] * 1024, *[2] * 1024]) for fine in (0, 50)),
        "test.bin": bytes([3, 42]) + bytes(3072),
        "fine_label_names.txt": "".join(f"class_{number}\n" for number in range(100)).encode(),
        "file.txt~": b"",
    }
    data = small(CIFAR100, files)
    folder = get_cifar(tmp_path, data, server.offer("cifar-100-binary.tar.gz", tar_of(data.folder, files)))
    assert sorted(path.name for path in folder.iterdir()) == ["fine_label_names.txt", "test.bin", "train.bin"]
    samples = data.read(tmp_path)
    assert (samples.train_targets.tolist(), samples.test_targets.tolist()) == ([0, 50], [42])
    assert samples.train_inputs.shape == (2, 3, 32, 32)
    assert [np.unique(plane).tolist() for plane in samples.train_inputs[1]] == [[50], [1], [2]]
    assert samples.class_names[42] == "class_42"
    (folder / "fine_label_names.txt").write_bytes(b"apple\n" * 100)
    with pytest.raises(InputError, match=r"fine_label_names.txt .*got 1"):
        data.read(tmp_path)


def test_fashion_mnist_is_downloaded_file_by_file(tmp_path: Path, server: Server) -> None:
    """MNIST's own files, of which the damaged one is replaced and the others are kept."""
    sources = tuple(server.offer(name, (MNIST_DIR / name).read_bytes()) for name in idx.FILES)
    folder = shutil.copytree(MNIST_DIR, tmp_path / "fashion-mnist")
    (folder / idx.FILES[3]).write_bytes(gzip.compress(b"other"))
    assert download.get_fashion_mnist(tmp_path, sources) == folder
    assert len(server.ranges) == 1
    data = load_samples("fashion-mnist", tmp_path)
    assert (data.train_inputs.shape, len(data.test_targets)) == ((60_000, 1, 28, 28), 10_000)
    (folder / idx.FILES[1]).unlink()
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte.gz does not exist"):
        load_samples("fashion-mnist", tmp_path)
    shutil.copy(folder / idx.FILES[3], folder / idx.FILES[1])
    with pytest.raises(InputError, match=r"the same number of samples, got 60000 and 10000"):
        load_task("fashion-mnist", data_dir=tmp_path)


def test_femnist_is_downloaded_and_converted(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive and the database are removed."""
    monkeypatch.setattr(femnist, "DATABASE_BYTES", 1 << 20)
    write_database(tmp_path / "source.sqlite", {"ann": [1, 2, 3], "bob": [61]})
    packed = lzma.compress((tmp_path / "source.sqlite").read_bytes(), format=lzma.FORMAT_ALONE)
    source = server.offer("emnist_all.sqlite.lzma", packed)
    folder = download.get_femnist(tmp_path, source)
    assert [path.name for path in folder.iterdir()] == [femnist.CONVERTED]
    assert femnist.read_femnist(tmp_path).train_targets.tolist() == [1, 2, 3, 61]
    assert download.get_femnist(tmp_path, source) == folder
    assert len(server.ranges) == 1


def test_drive_tests_are_downloaded_and_converted(tmp_path: Path, server: Server) -> None:
    """A copy of the archive in the folder of data sets is used, unless it is another file."""
    rows = "".join(f"2019.12.01_10.{second // 60:02}.{second % 60:02},-90,{second % 7}\n" for second in range(120))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("5G-production-dataset/Netflix/Static/B_10.csv", f"Timestamp,RSRP,SNR\n{rows}")
    source = server.offer(drive_tests.ARCHIVE, packed.getvalue())
    output = download.get_drive_tests(tmp_path, source)
    assert output == tmp_path / "5g" / "5g-snr.csv"
    assert output.read_text().startswith("trace,time_s,snr_db\nNetflix/Static/2019.12.01_10.00.00,0,0\n")
    output.write_text("damaged")
    download.get_drive_tests(tmp_path, source)
    assert len(output.read_text().splitlines()) == 121
    assert len(server.ranges) == 1, "the archive is kept"
    server.files.clear()
    copy = tmp_path / "elsewhere" / drive_tests.ARCHIVE
    copy.parent.mkdir()
    copy.write_bytes(packed.getvalue())
    assert download.get_drive_tests(copy.parent, source).exists()
    copy.write_bytes(b"something else")
    with pytest.raises(InputError, match=f"put a copy of {drive_tests.ARCHIVE}"):
        download.get_drive_tests(copy.parent, source)


def test_command_downloads_and_prints_the_folder(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = server.offer("input.txt", b"ALL:\nPeace, ho!\n")
    get = functools.partial(download.get_shakespeare, source=source)
    monkeypatch.setitem(download.DOWNLOADS, "shakespeare", ("Shakespeare", get))
    assert main(["data", "shakespeare", "--dir", str(tmp_path)]) == 0
    assert str(tmp_path / shakespeare.FILE) in capsys.readouterr().out
