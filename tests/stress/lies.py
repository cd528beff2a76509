"""Files of a run that are well-formed but wrong: values of another type, range or length, or missing values."""

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.stress.command import call
from tests.stress.commands import RUN, undisturbed
from tests.stress.damage import BROKEN
from tests.stress.trial import Facts, Trial

FILES = ("metrics.jsonl", "summary.json", "clients.json")
WRONG: tuple[Any, ...] = (
    None,
    True,
    "x",
    "",
    5,
    -1,
    0.5,
    -0.5,
    1e308,
    -1e308,
    10**30,
    10**400,
    float("nan"),
    float("inf"),
    [],
    {},
    [1],
    [None],
    ["x"],
    [[]],
    {"x": "y"},
    {"x": 5},
)


def lies_about(name: str, content: str) -> Iterator[tuple[str, str]]:
    """Yield a description of each change, and the content of the file with that change."""
    if name != "metrics.jsonl":
        for what, value in _changed(json.loads(content)):
            yield what, json.dumps(value)
        return
    lines = content.splitlines()
    place = next(number for number, line in enumerate(lines) if '"accuracy"' in line)
    for what, value in _changed(json.loads(lines[place])):
        yield f"line {place + 1}, {what}", "\n".join([*lines[:place], json.dumps(value), *lines[place + 1 :], ""])
    yield "lines in another order", "\n".join([*reversed(lines), ""])
    yield "a line twice", "\n".join([lines[0], *lines, ""])


def _changed(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values with one of them dropped, replaced or changed in length."""
    for key, value in values.items():
        rest = {name: one for name, one in values.items() if name != key}
        yield f"without {path}{key}", rest
        for wrong in WRONG:
            yield f"{path}{key} = {str(wrong)[:20]}", rest | {key: copy.deepcopy(wrong)}
        if isinstance(value, dict):
            for what, inner in _changed(value, f"{path}{key}."):
                yield what, rest | {key: inner}
        if isinstance(value, list) and value:
            yield f"{path}{key} one shorter", rest | {key: value[:-1]}
            yield f"{path}{key} one longer", rest | {key: [*value, value[-1]]}
            for wrong in WRONG[:10]:
                yield f"{path}{key} with {str(wrong)[:20]}", rest | {key: [wrong, *value[1:]]}


TABLES = {"empty": b"", "not UTF-8": b"\xff\xfe", "an open quote": b'"', "a field of 200 kB": b"a" * 200_000}
"""Contents that a table of a reproduction cannot have."""


def trials(shared: Path, short: bool) -> list[Trial]:
    """Return trials of `lesson report` and `lesson run --resume` on every change; if `short`, on one per file."""
    tables = list(TABLES.items())[: 1 if short else None]
    return [Trial("lies", f"table1.csv {what}", _damage_table(content)) for what, content in tables] + [
        Trial("lies", f"{name} {'ended' if ended else 'not ended'}", _tell(shared, name, ended, 1 if short else None))
        for name in FILES
        for ended in ((True,) if name != "metrics.jsonl" else (True, False))
    ]


def _tell(shared: Path, name: str, ended: bool, at_most: int | None) -> Callable[[Path, random.Random], Facts]:
    def do(folder: Path, rng: random.Random) -> Facts:
        source, rejected = undisturbed(RUN, shared) if ended else shared / BROKEN, 0
        lies = list(lies_about(name, (source / name).read_text()))
        chosen = lies if at_most is None else rng.sample(lies, at_most)
        for number, (what, content) in enumerate(chosen):
            out = Path(shutil.copytree(source, folder / f"runs{number}"))
            (out / name).write_text(content)
            for argv in (["report", str(out), "-o", "page.html"], RUN.argv(out)):
                try:
                    rejected += call(argv, folder, real=False).check(0, 2, 3).status != 0
                except AssertionError as error:
                    raise AssertionError(f"{what}: {error}") from None
            shutil.rmtree(out)
        return {"rejected": rejected}

    return do


def _damage_table(content: bytes) -> Callable[[Path, random.Random], Facts]:
    def do(folder: Path, _: random.Random) -> Facts:
        call(["reproduce", "table1", "--out", "paper"], folder, real=False).check(0)
        (folder / "paper" / "table1.csv").write_bytes(content)
        call(["report", "paper", "-o", "page.html"], folder, real=False).check(2)
        return {"rejected": 1}

    return do
