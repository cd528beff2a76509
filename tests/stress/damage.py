"""Damaged files in a run folder: reported in one line, or recovered from the previous checkpoint."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.stress.command import call
from tests.stress.commands import CHANGES, RUN, undisturbed
from tests.stress.folders import check_same
from tests.stress.trial import Facts, Trial

Damage = Callable[[Path, random.Random], object]
NEWEST, BEFORE = "checkpoint.safetensors", "checkpoint-before.safetensors"
BROKEN = "broken"


class _Broken(Exception):  # noqa: N818
    """Raised to interrupt a run."""


def prepare(shared: Path) -> list[Trial]:
    """Return a trial that leaves a run interrupted after 40 rounds, with two checkpoints."""

    def do(_: Path, __: random.Random) -> None:
        from lesson.runs.execute import execute
        from lesson.settings.loading import load_settings

        def stop(line: dict[str, Any]) -> None:
            if line["round"] == 40:
                raise _Broken

        try:
            execute(
                load_settings("released", (*CHANGES, "run.rounds=80", "run.checkpoint_every_s=1e-9")),
                shared / BROKEN,
                progress=stop,
            )
        except _Broken:
            config = shared / BROKEN / "config.toml"
            config.write_text(config.read_text().replace("checkpoint_every_s = 1e-09", "checkpoint_every_s = 0.05"))

    return [Trial("undisturbed", BROKEN, do)]


def _cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(1, path.stat().st_size)])


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _put(content: bytes) -> Damage:
    return lambda path, _: path.write_bytes(content)


def replace_by_folder(path: Path, _: random.Random) -> None:
    """Replace a file by a folder."""
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Damage] = {
    "cut": _cut,
    "flipped": _flip,
    "garbage": lambda path, rng: path.write_bytes(rng.randbytes(1000)),
    "empty": _put(b""),
    "gone": lambda path, _: path.unlink(),
    "a list": _put(b"[]\n"),
    "a number": _put(b"1\n"),
    "nested": _put(b"[" * 100_000),
    "zeros": lambda path, _: path.write_bytes(bytes(path.stat().st_size)),
    "a folder": replace_by_folder,
}


def trials(shared: Path, short: bool) -> list[Trial]:
    """Return trials that resume runs with damaged files and, unless these are checkpoints, also report on them."""
    times = 1 if short else 5
    of_one = ["flipped", "cut"] if short else ["cut", "flipped", "garbage", "empty", "gone", "nested", "zeros"]
    made = [
        Trial("damaged checkpoint", f"{damage} {number}", _newest(shared, damage))
        for damage in of_one
        for number in range(times if damage in ("cut", "flipped", "garbage") else 1)
    ]
    made += [
        Trial("damaged checkpoint", f"both {damage}", _both(shared, damage))
        for damage in (of_one[:1] if short else [one for one in of_one if one != "gone"])
    ]
    files = ["metrics.jsonl"] if short else ["metrics.jsonl", "summary.json", "config.toml", "clients.json"]
    for file in files:
        for damage in ("cut", "flipped") if short else DAMAGES:
            for ended in (True,) if short or file in ("summary.json", "clients.json") else (True, False):
                made.append(
                    Trial(
                        f"damaged {file}",
                        f"{damage} {'ended' if ended else 'not ended'}",
                        _other(shared, file, damage, ended),
                    )
                )
    return made


def _newest(shared: Path, damage: str) -> Callable[[Path, random.Random], Facts]:
    def do(folder: Path, rng: random.Random) -> Facts:
        out = Path(shutil.copytree(shared / BROKEN, folder / "runs"))
        DAMAGES[damage](out / NEWEST, rng)
        outcome = call(RUN.argv(out), folder, real=False).check(0)
        assert f"note: {out / NEWEST} " in outcome.err, f"the damage must be told, got {outcome.err!r}"
        check_same(out, undisturbed(RUN, shared))
        return {}

    return do


def _both(shared: Path, damage: str) -> Callable[[Path, random.Random], Facts]:
    def do(folder: Path, rng: random.Random) -> Facts:
        out = Path(shutil.copytree(shared / BROKEN, folder / "runs"))
        for name in (NEWEST, BEFORE):
            DAMAGES[damage](out / name, rng)
        outcome = call(RUN.argv(out), folder, real=False).check(2)
        assert "cannot be used" in outcome.err, outcome.err
        return {}

    return do


def _other(shared: Path, file: str, damage: str, ended: bool) -> Callable[[Path, random.Random], Facts]:
    def do(folder: Path, rng: random.Random) -> Facts:
        out = Path(shutil.copytree(undisturbed(RUN, shared) if ended else shared / BROKEN, folder / "runs"))
        DAMAGES[damage](out / file, rng)
        for argv in (["report", str(out), "-o", "page.html"], RUN.argv(out)):
            call(argv, folder, real=False).check(0, 2, 3)
        return {}

    return do
