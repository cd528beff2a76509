"""Malicious files: they must be rejected in one line, in bounded time and memory."""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

from tests.stress.command import GIB, Limits, call
from tests.stress.commands import RUN, undisturbed
from tests.stress.damage import BEFORE, BROKEN, NEWEST
from tests.stress.trial import Facts, Trial

LIMITS = Limits(seconds=100.0, cpu_s=10, memory_bytes=6 * GIB)
Write = Callable[[Path], object]


def _sparse(size: int, head: bytes = b"") -> Write:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.write(head)
            file.truncate(size)

    return write


def _tensors(header: bytes, length: int | None = None, data: bytes = b"") -> Write:
    size = struct.pack("<Q", len(header) if length is None else length)
    return lambda path: path.write_bytes(size + header + data)


def _one_tensor(size: int) -> bytes:
    return json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()


def _with_state(state: str) -> Write:
    return _tensors(json.dumps({"__metadata__": {"state": state}}).encode())


_ONE = '"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
CHECKPOINTS: dict[str, Write] = {
    "header of 2^60 bytes": _tensors(b"{}", 1 << 60),
    "header of 2^64 - 1 bytes": _tensors(b"{}", (1 << 64) - 1),
    "nested header": _tensors(b'{"a":' * 200_000),
    "keys twice": _tensors(f"{{{_ONE},{_ONE}}}".encode(), data=b"1"),
    "metadata of 90 MB": _tensors(json.dumps({"__metadata__": {"a": "b" * 90_000_000}}).encode()),
    "a million keys": _tensors(json.dumps({"__metadata__": {str(n): "" for n in range(1_000_000)}}).encode()),
    "a tensor beyond the end": _tensors(_one_tensor(1 << 50)),
    "shapes that overflow": _tensors(
        b'{"x":{"dtype":"F64","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]}}', data=bytes(8)
    ),
    "negative shape": _tensors(b'{"x":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}', data=b"1"),
    "8 GB of zeros": _sparse(8 * GIB, struct.pack("<Q", len(_one_tensor(8 * GIB - 100))) + _one_tensor(8 * GIB - 100)),
    "state that is nested": _with_state("[" * 1_000_000),
    "state with a million digits": _with_state(f'{{"metrics_bytes": {"9" * 1_000_000}}}'),
    "state before the beginning": _with_state('{"metrics_bytes": -1}'),
    "state and nothing else": _with_state('{"metrics_bytes": 0}'),
    "state that is no number": _with_state('{"metrics_bytes": NaN}'),
}
SETTINGS: dict[str, Write] = {
    "100 MB": lambda path: path.write_bytes(b"[radio]\n" + b"# a comment, and another one\n" * 3_600_000),
    "1 GB of nothing": _sparse(GIB),
    "nested 100,000 deep": lambda path: path.write_bytes(b"a = " + b"[" * 100_000 + b"]" * 100_000),
    "tables 100,000 deep": lambda path: path.write_bytes(b"a = " + b"{a = " * 100_000 + b"}" * 100_000),
    "dotted 500,000 deep": lambda path: path.write_bytes(b".".join([b"a"] * 500_000) + b" = 1"),
    "binary": lambda path: path.write_bytes(random.Random(0).randbytes(100_000)),
    "a million digits": lambda path: path.write_bytes(b"[radio]\npower_w = " + b"9" * 1_000_000),
    "a million digits after the point": lambda path: path.write_bytes(b"[data]\nbeta = -0." + b"9" * 1_000_000),
    "a string of a megabyte": lambda path: path.write_bytes(b'[data]\nsplit = "' + b"9" * 1_000_000 + b'"'),
    "100,000 tables": lambda path: path.write_bytes(b"".join(b"[a%d]\n" % n for n in range(100_000))),
    "a megabyte of escaped quotes": lambda path: path.write_bytes(b'\\"' * 500_000),
    "escaped triple quotes": lambda path: path.write_bytes(b'a = """' + b'a"\\"""' * 150_000),
    "100,000 quotes": lambda path: path.write_bytes(b"\"'" * 100_000),
}
_HEAD = b"client,latency_s\n"
TABLES: dict[str, Write] = {
    "1 GB of nothing": _sparse(GIB),
    "1 GB of nothing under a header": _sparse(GIB, _HEAD),
    "a line of 100 MB": lambda path: path.write_bytes(_HEAD + b"a" * 100_000_000 + b",1\n"),
    "a quote that never ends": lambda path: path.write_bytes(_HEAD + b'"' + b"a,1\n" * 10_000_000),
    "NUL bytes": lambda path: path.write_bytes(_HEAD + b"a\x00,1\x00\n" * 1000),
    "binary": lambda path: path.write_bytes(random.Random(0).randbytes(1_000_000)),
    "a million columns": lambda path: path.write_bytes(b",".join([b"a"] * 1_000_000) + b"\n"),
    "a number of a million digits": lambda path: path.write_bytes(_HEAD + b"a," + b"9" * 1_000_000 + b"\n"),
    "10 million empty lines": lambda path: path.write_bytes(_HEAD + b"\n" * 10_000_000),
}
READERS: dict[str, list[str]] = {
    "latencies": ["plan", "--latencies", "file"],
    **{name: ["plan", "--set", f"fleet.{name}=file"] for name in ("trace", "presence", "positions")},
    "snr_trace": ["plan", "--set", "radio.snr_trace=file"],
}


ODD_FILES: dict[str, Write] = {
    "a FIFO": os.mkfifo,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "/dev/random": lambda path: path.symlink_to("/dev/random"),
    "a terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
}
"""Anything but regular files."""


def trials(shared: Path, short: bool) -> list[Trial]:
    """Return trials with checkpoints, settings and tables, each for the commands that read them."""
    made = [_checkpoint(shared, case) for case in (list(CHECKPOINTS)[:3] if short else CHECKPOINTS)]
    commands = [["plan", "--scenario"]] if short else [["plan", "--scenario"], ["sweep"], ["sweep", "--tune"]]
    for case in ["nested 100,000 deep", "a megabyte of escaped quotes"] if short else SETTINGS:
        made += [
            _file("TOML", f"{case}, {' '.join(words)}", SETTINGS[case], [*words, "file.toml"], "file.toml")
            for words in commands
        ]
    for case in list(TABLES)[1:2] if short else TABLES:
        names = ["latencies"] if short else list(READERS)
        made += [_file("CSV", f"{case}, {name}", TABLES[case], READERS[name], "file") for name in names]
    for case in list(ODD_FILES)[:2] if short else ODD_FILES:
        made += [_file("file", f"{case}, settings", ODD_FILES[case], ["plan", "--scenario", "file.toml"], "file.toml")]
        for name in ["latencies"] if short else READERS:
            made.append(_file("file", f"{case}, {name}", ODD_FILES[case], READERS[name], "file"))
        for name in ("metrics.jsonl",) if short else ("config.toml", "metrics.jsonl", "summary.json", "clients.json"):
            made.append(_in_folder(shared, case, name))
    return made


def _in_folder(shared: Path, case: str, name: str) -> Trial:
    def do(folder: Path, _: random.Random) -> Facts:
        out = Path(shutil.copytree(undisturbed(RUN, shared), folder / "runs"))
        (out / name).unlink()
        ODD_FILES[case](out / name)
        outcome = call(["report", str(out), "-o", "page.html"], folder, LIMITS, real=False).check(2)
        return {"cpu_s": outcome.cpu_s, "peak_mib": outcome.peak_mib}

    return Trial("hostile file", f"{case}, {name}", do)


def _checkpoint(shared: Path, case: str) -> Trial:
    def do(folder: Path, _: random.Random) -> Facts:
        out = Path(shutil.copytree(shared / BROKEN, folder / "runs"))
        (out / BEFORE).unlink()
        CHECKPOINTS[case](out / NEWEST)
        outcome = call(RUN.argv(out), folder, LIMITS, real=False).check(2)
        return {"cpu_s": outcome.cpu_s, "peak_mib": outcome.peak_mib}

    return Trial("hostile safetensors", case, do)


def _file(kind: str, case: str, write: Write, argv: list[str], name: str) -> Trial:
    def do(folder: Path, _: random.Random) -> Facts:
        write(folder / name)
        outcome = call(argv, folder, LIMITS, real=False).check(2)
        return {"cpu_s": outcome.cpu_s, "peak_mib": outcome.peak_mib}

    return Trial(f"hostile {kind}", case, do)
