"""Downloads of data sets, with a progress bar and a checksum; an interrupted download is resumed."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pooch  # type: ignore[import-untyped]
import requests
from tqdm import tqdm

from lesson.core.errors import InputError
from lesson.learn.data import drive_tests, femnist, idx, shakespeare
from lesson.learn.data.cifar import CIFAR10, CIFAR100, Cifar

CHUNK_BYTES = 1 << 15
TIMEOUT_S = 30


@dataclass(frozen=True)
class Source:
    """A file to download: its address, its exact size and its SHA-256."""

    url: str
    num_bytes: int
    sha256: str


CIFAR10_ARCHIVE = Source(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR100_ARCHIVE = Source(
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    168_513_733,
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)
_FASHION_MNIST = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
FASHION_MNIST = (
    Source(
        f"{_FASHION_MNIST}/train-images-idx3-ubyte.gz",
        26_421_880,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    Source(
        f"{_FASHION_MNIST}/train-labels-idx1-ubyte.gz",
        29_515,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    Source(
        f"{_FASHION_MNIST}/t10k-images-idx3-ubyte.gz",
        4_422_102,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    Source(
        f"{_FASHION_MNIST}/t10k-labels-idx1-ubyte.gz",
        5_148,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)
FEMNIST = Source(
    "https://storage.googleapis.com/tff-datasets-public/emnist_all.sqlite.lzma",
    170_507_172,
    "c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48",
)
SHAKESPEARE = Source(
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    shakespeare.NUM_BYTES,
    shakespeare.SHA256,
)
DRIVE_TESTS = Source(
    f"https://raw.githubusercontent.com/uccmisl/5Gdataset/306d92eba81cb4f1195d8b8eba625666a02a10ec/{drive_tests.ARCHIVE}",
    2_177_094,
    "abc729d696b5e0ba34a9c6ed35a851f2868d2b5071be5efb8a49691c23bb1a9b",
)


def get_cifar(folder: Path, data: Cifar, source: Source) -> Path:
    """Return the folder with the verified files; download and unpack the archive if they are missing or damaged."""
    with contextlib.suppress(InputError):
        data.read(folder)
        return folder / data.folder
    archive = folder / Path(source.url).name
    download(source, archive, pooch.Untar([f"{data.folder}/{name}" for name in data.files], extract_dir="."))
    archive.unlink()
    data.read(folder)
    return folder / data.folder


def get_fashion_mnist(folder: Path, sources: tuple[Source, ...] = FASHION_MNIST) -> Path:
    """Return the folder with the four verified files; download those that are missing or damaged."""
    for source in sources:
        download(source, folder / "fashion-mnist" / Path(source.url).name)
    idx.read_idx_folder(folder / "fashion-mnist")
    return folder / "fashion-mnist"


def get_shakespeare(folder: Path, source: Source = SHAKESPEARE) -> Path:
    """Return the path of the verified text; download it if it is missing or damaged."""
    download(source, folder / shakespeare.FILE)
    return folder / shakespeare.FILE


def get_femnist(folder: Path, source: Source = FEMNIST) -> Path:
    """Return the folder with the images by writer; download and convert them if they are missing or damaged."""
    with contextlib.suppress(InputError):
        femnist.read_femnist(folder)
        return folder / femnist.FOLDER
    archive = folder / femnist.FOLDER / Path(source.url).name
    download(source, archive)
    femnist.convert(archive, folder / femnist.FOLDER / femnist.CONVERTED)
    archive.unlink()
    femnist.read_femnist(folder)
    return folder / femnist.FOLDER


def get_drive_tests(folder: Path, source: Source = DRIVE_TESTS) -> Path:
    """Return the path of the SNR traces, converted from the verified archive; download it if it is missing or damaged.

    The archive may also be put into the folder of data sets itself.
    """
    folder, given = folder / drive_tests.FOLDER, folder / drive_tests.ARCHIVE
    archive = given if given.exists() else folder / drive_tests.ARCHIVE
    try:
        download(source, archive)
    except InputError as error:
        raise InputError(f"{error}, or put a copy of {drive_tests.ARCHIVE} into {given.parent}") from None
    drive_tests.convert(archive, folder / drive_tests.CONVERTED)
    return folder / drive_tests.CONVERTED


DOWNLOADS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "5g": ("The SNR of 5G drive tests", get_drive_tests),
    "cifar10": ("CIFAR-10", partial(get_cifar, data=CIFAR10, source=CIFAR10_ARCHIVE)),
    "cifar100": ("CIFAR-100", partial(get_cifar, data=CIFAR100, source=CIFAR100_ARCHIVE)),
    "fashion-mnist": ("Fashion-MNIST", get_fashion_mnist),
    "femnist": ("FEMNIST", get_femnist),
    "shakespeare": ("Shakespeare", get_shakespeare),
}
"""Title and function of each data set that `lesson data` downloads. The functions take the folder of data sets."""


def download(source: Source, path: Path, unpack: Callable[[str, str, object], object] | None = None) -> None:
    """Download a file unless it exists and is intact, then call `unpack`; raise InputError if this fails.

    An interrupted download is continued from its file, which is `path` with the suffix .part.
    """
    again = "run the command again to download it from the start"
    try:
        pooch.get_logger().setLevel("ERROR")
        pooch.retrieve(source.url, source.sha256, path.name, path.parent, unpack, _Resume(source, path))
    except requests.RequestException as error:
        reason = type(error).__name__
        raise InputError(f"{source.url} cannot be downloaded ({reason}); run the command again to resume") from None
    except ValueError:
        why = "is damaged: its SHA-256 is not the official one"
        raise InputError(f"{source.url} {why}; {again}") from None
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise InputError(f"{path.name} cannot be written to {path.parent}: {error}; {again}") from None


@dataclass(frozen=True)
class _Resume:
    """Downloader for pooch that resumes and limits the size; pooch's own one starts over and may fill the disk."""

    source: Source
    path: Path

    def __call__(self, url: str, output: str, _: object) -> None:
        part = self.path.with_name(f"{self.path.name}.part")
        with part.open("ab") as file:
            size = part.stat().st_size
            if size < self.source.num_bytes:
                headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={size}-"} if size else {})
                with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
                    response.raise_for_status()
                    response.raw.headers.pop("Content-Encoding", None)  # some servers set it to gzip for a .tar.gz
                    if response.status_code != requests.codes.partial_content:  # the server sends the whole file
                        file.truncate(0)
                        size = 0
                    self._receive(response, file, size)
        part.replace(output)

    def _receive(self, response: requests.Response, file: BinaryIO, size: int) -> None:
        """Append what the server sends to a file that has `size` bytes, up to one byte more than expected."""
        expected, name = self.source.num_bytes, self.path.name
        with tqdm(total=expected, initial=size, desc=name, unit="B", unit_scale=True) as bar:
            for chunk in response.iter_content(CHUNK_BYTES):
                size += file.write(chunk[: expected + 1 - size])
                bar.update(len(chunk))
                if size > expected:
                    break
        if size < expected:
            raise requests.ConnectionError
