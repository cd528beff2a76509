"""Download of CIFAR-10, with a progress bar and a checksum; an interrupted download is resumed."""

import contextlib
from pathlib import Path

import pooch  # type: ignore[import-untyped]
import requests
from tqdm import tqdm

from lesson.core.errors import InputError
from lesson.core.files import open_to_change
from lesson.learn.data.cifar10 import FOLDER, SHA256, find_cifar10, read_cifar10

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
ARCHIVE_BYTES = 170_052_171
CHUNK_BYTES = 1 << 15


def get_cifar10(folder: Path | str, url: str = URL) -> Path:
    """Return the folder with the six verified files; download them if they are missing or damaged."""
    folder = Path(folder)
    with contextlib.suppress(InputError):
        read_cifar10(folder)
        return find_cifar10(folder)
    archive = folder / Path(url).name
    unpack = pooch.Untar([f"{FOLDER}/{name}" for name in SHA256], extract_dir=".")
    try:
        pooch.get_logger().setLevel("ERROR")
        pooch.retrieve(url, ARCHIVE_SHA256, archive.name, folder, unpack, _resume)
    except requests.RequestException as error:
        reason = type(error).__name__
        raise InputError(f"{url} cannot be downloaded ({reason}); run the command again to resume") from None
    except ValueError:
        why = "is damaged: its SHA-256 is not the official one"
        raise InputError(f"{url} {why}; run the command again to download it from the start") from None
    except OSError as error:
        archive.unlink(missing_ok=True)
        raise InputError(
            f"CIFAR-10 cannot be written to {folder}: {error}; run the command again to download it from the start"
        ) from None
    archive.unlink()
    for name in SHA256:
        (folder / name).unlink(missing_ok=True)  # a damaged file here would be read instead of the new one
    read_cifar10(folder)
    return find_cifar10(folder)


def _resume(url: str, output: str, _: object) -> None:
    """Download a file for pooch, whose own downloader would start over after an interruption."""
    part = Path(output).with_name(f"{Path(url).name}.part")
    with (
        open_to_change(part, append=True) as file,
        tqdm(total=ARCHIVE_BYTES, desc="CIFAR-10", unit="B", unit_scale=True) as bar,
    ):

        def begin(response: requests.Response, **_: object) -> None:
            if response.status_code == requests.codes.ok:  # the server ignores the range and sends the whole file
                file.truncate(0)

        size = part.stat().st_size
        headers = {"Range": f"bytes={size}-"} if size else {}
        fetch = pooch.HTTPDownloader(bar, CHUNK_BYTES, headers=headers, hooks={"response": begin})
        try:
            fetch(url, file, None)
        except requests.HTTPError as error:
            if error.response.status_code != requests.codes.requested_range_not_satisfiable:
                raise  # otherwise, the file was already complete
    part.replace(output)
