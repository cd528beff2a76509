"""Download of CIFAR-10, with a progress bar and checksums; an interrupted download is resumed."""

import contextlib
import tarfile
import zlib
from pathlib import Path

import pooch  # type: ignore[import-untyped]
import requests
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from lesson.core.errors import InputError
from lesson.core.files import open_to_change, write_whole
from lesson.learn.data.cifar10 import FOLDER, RECORD_BYTES, RECORDS, SHA256, find_cifar10, read_cifar10

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CHUNK_BYTES = 1 << 15
TIMEOUT_S = 30


def get_cifar10(folder: Path | str, url: str = URL) -> Path:
    """Return the folder with the six verified files; download them if they are missing or damaged."""
    folder = Path(folder)
    with contextlib.suppress(InputError):
        read_cifar10(folder)
        return find_cifar10(folder)
    archive = folder / Path(url).name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pooch.get_logger().setLevel("ERROR")
        pooch.retrieve(url, known_hash=None, path=folder, fname=archive.name, downloader=_resume)
        _unpack(archive, find_cifar10(folder))
    except requests.RequestException as error:
        reason = type(error).__name__
        raise InputError(f"{url} cannot be downloaded ({reason}); run the command again to resume") from None
    except (OSError, EOFError, KeyError, zlib.error, tarfile.TarError) as error:
        archive.unlink(missing_ok=True)
        raise InputError(
            f"CIFAR-10 cannot be written to {folder}: {error}; run the command again to download it from the start"
        ) from None
    archive.unlink()
    read_cifar10(folder)
    return find_cifar10(folder)


def _resume(url: str, output: str, _: object) -> None:
    """Download a file for pooch; continue if an earlier attempt has left a part of it."""
    part = Path(output).parent / f"{Path(url).name}.part"
    begin = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={begin}-"} if begin else {}
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            part.replace(output)
            return
        response.raise_for_status()
        resumed = response.status_code == requests.codes.partial_content
        begin = begin if resumed else 0
        total = begin + int(response.headers.get("Content-Length", 0))
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with open_to_change(part) as file, Progress(*columns) as progress:
            file.truncate(begin)
            file.seek(begin)
            task = progress.add_task("CIFAR-10", total=total or None, completed=begin)
            for chunk in response.iter_content(CHUNK_BYTES):
                file.write(chunk)
                progress.advance(task, len(chunk))
    part.replace(output)


def _unpack(archive: Path, folder: Path) -> None:
    """Extract the six files, and nothing else; each is written atomically."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for name in SHA256:
            member = tar.extractfile(f"{FOLDER}/{name}")
            assert member is not None, "a file of the archive"
            write_whole(folder / name, member.read(RECORDS * RECORD_BYTES + 1))
