"""Damaged data sets."""

import gzip
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from lesson.learn.data.cifar10 import RECORD_BYTES, RECORDS, SHA256
from lesson.learn.data.dataset import MNIST_DIR
from lesson.learn.data.idx import FILES
from tests.stress.command import GIB, Limits, call
from tests.stress.commands import SMALL
from tests.stress.damage import Damage, replace_by_folder
from tests.stress.trial import Facts, Trial

IMAGES, LABELS = FILES[0], FILES[1]


def _inside(change: Callable[[bytes], bytes]) -> Damage:
    """Return a function that damages the content of a gzip file but keeps its checksum valid."""
    return lambda path, _: path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes())), 1))


def _cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(1, path.stat().st_size)])


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for place in rng.sample(range(20, len(content)), 20):
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


DAMAGES: dict[str, tuple[str, Damage]] = {
    "cut": (IMAGES, _cut),
    "flipped": (IMAGES, _flip),
    "flipped labels": (LABELS, _flip),
    "wrong magic": (IMAGES, _inside(lambda content: b"\x00\x00\x0d" + content[3:])),
    "wrong axes": (LABELS, _inside(lambda content: b"\x00\x00\x08\x03" + content[4:])),
    "more than there is": (IMAGES, _inside(lambda content: content[:4] + b"\xff" * 12 + content[16:])),
    "a label less": (LABELS, _inside(lambda content: content[:4] + (59_999).to_bytes(4, "big") + content[8:-1])),
    "a header alone": (IMAGES, _inside(lambda content: content[:10])),
    "nothing": (IMAGES, _inside(lambda _: b"")),
    "not gzip": (IMAGES, lambda path, _: path.write_bytes(gzip.decompress(path.read_bytes())[:1000])),
    "empty": (LABELS, lambda path, _: path.write_bytes(b"")),
    "gone": (LABELS, lambda path, _: path.unlink()),
    "a folder": (LABELS, replace_by_folder),
    "four gigabytes of zeros": (IMAGES, lambda path, _: _bomb(path)),
}


def _bomb(path: Path) -> None:
    with gzip.open(path, "wb", 1) as file:
        for _ in range(256):
            file.write(bytes(1 << 24))


def trials(_: Path, short: bool) -> list[Trial]:
    """Return trials with damaged files of Fashion-MNIST, for which those of MNIST are used, and of CIFAR-10."""
    chosen = ["cut", "wrong magic"] if short else list(DAMAGES)
    made = [Trial("damaged data", damage, _idx(*DAMAGES[damage])) for damage in chosen]
    of_cifar10 = () if short else ("short", "other bytes")
    return made + [Trial("damaged data", f"cifar10 {what}", _cifar10(what)) for what in of_cifar10]


def _idx(name: str, damage: Damage) -> Callable[[Path, random.Random], Facts]:
    def do(folder: Path, rng: random.Random) -> Facts:
        data = folder / "data" / "fashion-mnist"
        data.mkdir(parents=True)
        for file in FILES:
            shutil.copy(MNIST_DIR / file, data / file)
        damage(data / name, rng)
        return _rejected("fashion-mnist", folder)

    return do


def _cifar10(what: str) -> Callable[[Path, random.Random], Facts]:
    def do(folder: Path, rng: random.Random) -> Facts:
        data = folder / "data" / "cifar-10-batches-bin"
        data.mkdir(parents=True)
        size = RECORDS * RECORD_BYTES - (what == "short")
        for file in SHA256:
            (data / file).write_bytes(rng.randbytes(1000) + bytes(size - 1000))
        return _rejected("cifar10", folder)

    return do


def _rejected(dataset: str, folder: Path) -> Facts:
    argv = ["run", "--dataset", dataset, "--data-dir", "data", "--rounds", "1", "--out", "runs", *SMALL]
    outcome = call(argv, folder, Limits(cpu_s=20, memory_bytes=4 * GIB), real=False).check(2)
    assert not (folder / "runs").exists(), "nothing must be left of a run that was rejected"
    return {"cpu_s": outcome.cpu_s, "peak_mib": outcome.peak_mib}
