"""Valid and invalid settings on the command line: the exit status is 0 or 2, and there is never a traceback."""

import dataclasses
import json
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lesson.cli import cli
from tests.stress.command import GIB, Limits, call
from tests.stress.odd import CONTRADICTORY, NONSENSE, REFUSED, WRONG, Tables
from tests.stress.trial import Facts, Trial
from tests.stress.values import LEAVE_OUT, draw_edge, draw_options, draw_valid, sections

LIMITS = Limits(seconds=200.0, cpu_s=60, memory_bytes=8 * GIB)
FILE = "settings.toml"


@dataclasses.dataclass(frozen=True)
class Case:
    """A command line, and the content of the settings file that it may name."""

    kind: str
    argv: list[str]
    file: bytes = b""


def trials(_: Path, short: bool) -> list[Trial]:
    """Return trials of random cases, every 33rd in a new process, and of settings that are always rejected."""
    return [_trial(number) for number in range(12 if short else 1000)] + [_rejected(line) for line in REFUSED]


def make_case(rng: random.Random) -> Case:
    """Draw a case: valid settings, edge or wrong values, unknown names, damaged TOML, contradictions, or odd flags."""
    ways: dict[Callable[[random.Random], Case], float] = {
        _valid: 0.5,
        _edge: 0.12,
        _wrong: 0.14,
        _unknown: 0.06,
        _damaged: 0.06,
        _contradictory: 0.04,
        _nonsense: 0.08,
    }
    return rng.choices(list(ways), list(ways.values()))[0](rng)


def _trial(number: int) -> Trial:
    def do(folder: Path, rng: random.Random) -> Facts:
        case = make_case(rng)
        if case.file:
            (folder / FILE).write_bytes(case.file)
        outcome = call(case.argv, folder, LIMITS, real=number % 33 == 5).check(0, 2)
        return {f"{case.kind} {outcome.status}": 1, f"status {outcome.status}": 1, "cpu_s": outcome.cpu_s}

    return Trial("settings", str(number), do)


def _rejected(line: str) -> Trial:
    def do(folder: Path, _: random.Random) -> Facts:
        call(shlex.split(line), folder, LIMITS, real=False).check(2)
        left = sorted(path.name for path in folder.iterdir())
        assert left == ["err", "out"], f"{line} must leave nothing behind, got {left}"
        return {"rejected": 1}

    return Trial("rejected settings", line, do)


def valid_tables(rng: random.Random) -> Tables:
    """Draw settings that should be valid and make a short run."""
    tables: Tables = {section: {} for section in sections()}
    for section, fields in sections().items():
        for name, field in fields.items():
            small = name in ("num_clients", "rounds", "samples_per_client")
            if small or rng.random() < rng.choice([0.0, 0.05, 0.2]):
                value = draw_valid(f"{section}.{name}", field, rng)
                if value is not LEAVE_OUT:
                    tables[section][name] = value
    if rng.random() < 0.9:  # otherwise several local steps start worker processes, each of which has to import torch
        tables["run"]["trainer"] = "reference"
    if "name" in tables["strategy"]:
        tables["strategy"] |= draw_options(tables["strategy"]["name"], rng)
    return tables


def _valid(rng: random.Random) -> Case:
    return _case("valid", valid_tables(rng), rng)


def _edge(rng: random.Random) -> Case:
    tables, every = valid_tables(rng), sections()
    for _ in range(rng.randint(1, 3)):
        section = rng.choice([one for one in every if every[one]])
        name = rng.choice(list(every[section]))
        if (value := draw_edge(every[section][name], rng)) is not LEAVE_OUT and name not in ("coherence_s", "rounds"):
            tables[section][name] = value
    return _case("edge", tables, rng)


def _wrong(rng: random.Random) -> Case:
    tables, every = valid_tables(rng), sections()
    section = rng.choice([one for one in every if every[one]])
    tables[section][rng.choice(list(every[section]))] = rng.choice(WRONG)
    return _case("wrong", tables, rng)


def _unknown(rng: random.Random) -> Case:
    tables = valid_tables(rng)
    word = rng.choice(["nothing", "Rounds", "a-b", "preset2", "num_client", "", "é", "x" * 300])
    if rng.random() < 0.3:
        tables[word] = {"a": 1}
    else:
        tables[rng.choice(list(tables))][word] = rng.choice(WRONG)
    return _case("unknown", tables, rng)


def _contradictory(rng: random.Random) -> Case:
    tables = valid_tables(rng)
    for section, values in rng.choice(CONTRADICTORY).items():
        tables[section] |= values
    return _case("contradictory", tables, rng)


def _damaged(rng: random.Random) -> Case:
    """Change bytes of a valid file; it is only planned, because a run with an inserted digit may take forever."""
    content = bytearray(to_toml(valid_tables(rng)).encode())
    for _ in range(rng.randint(1, 20)):
        place = rng.randrange(len(content) + 1)
        content[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
    return Case("damaged", ["plan", "--scenario", FILE, "--clients", "5"], bytes(content))


def _nonsense(rng: random.Random) -> Case:
    argv = shlex.split(rng.choice(NONSENSE))
    if rng.random() < 0.3:
        command = rng.choice(list(cli.commands))
        flags = [name for param in cli.commands[command].params for name in param.opts]
        words = [*flags, "", "x", "-1", "nan", "--", "-", "9" * 50, "é", "=", "--set=", "a=b=c", "*"]
        argv = [command, *rng.choices(words, k=rng.randint(1, 4)), "--none-such"]
    return Case("nonsense", argv)


def _case(kind: str, tables: Tables, rng: random.Random) -> Case:
    """Return a command with the settings split at random between a file and flags."""
    argv = ["plan"] if rng.random() < 0.7 else ["run", "--out", "runs"]
    in_file: Tables = {section: {} for section in tables}
    for section, values in tables.items():
        for name, value in values.items():
            if rng.random() < 0.5:
                in_file[section][name] = value
            else:
                argv += ["--set", f"{section}.{name}={toml(value)}"]
    content = to_toml(in_file).encode()
    return Case(kind, [*argv, "--scenario", FILE], content or b"\n")


def to_toml(tables: Tables) -> str:
    """Return tables as TOML, with arbitrary keys and values."""
    return "\n".join(
        line
        for section, values in tables.items()
        for line in (f"[{_key(section)}]", *(f"{_key(name)} = {toml(value)}" for name, value in values.items()))
    )


def toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | str) else repr(value)


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
