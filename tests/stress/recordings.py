"""Recordings and logs of others: rejected in one line, or used, in bounded time and memory."""

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.stress.command import GIB, Limits, call, call_here
from tests.stress.runs import Undisturbed
from tests.stress.trial import Facts, Trial

LIMITS = Limits(cpu_s=60, memory_bytes=6 * GIB)
MARKUP = "<img src=x onerror=alert(1)>"
WRONG: tuple[Any, ...] = (
    *(None, True, "x", "", "\x1b[2J", 5, -1, 0.5, -0.5, 1e308, -1e308, 10**30, 10**400, math.nan, math.inf),
    *([], {}, [1], [None], ["x"], [[]], {"x": "y"}, {"x": 5}),
)
READERS = {
    "recording": (b'{"flight": 1}\n', ["replay", "file"]),
    "log": (b"client,asked_s,arrived_s\n", ["record", "import", "file"]),
}
"""First line of each kind of file, and the command that reads it."""
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "a line of 100 MB": lambda head: head + b"a" * 100_000_000 + b"\n",
    "a quote that never ends": lambda head: head + b'"' + b"a,1\n" * 10_000_000,
    "nested 100,000 deep": lambda head: head + b'{"t_s": ' * 100_000 + b"\n",
    "a number of a million digits": lambda head: head + b"0,1," + b"9" * 1_000_000 + b"\n",
    "10 million empty lines": lambda head: head + b"\n" * 10_000_000,
    "zeros": lambda head: head + bytes(100_000_000),
    "random bytes": lambda head: head + random.Random(0).randbytes(1_000_000),
    "a million columns": lambda head: b",".join([b"a"] * 1_000_000) + b"\n",
}


def _events(latency_s: dict[str, list[float]]) -> Iterator[dict[str, Any]]:
    """Yield the events of synchronous rounds in which each client takes these times."""
    yield {"flight": 1, "strategy": "fedavg"}
    now_s = 0.0
    for number, row in enumerate(zip(*latency_s.values(), strict=True), start=1):
        jobs = {name: (f"{number} {name}", took_s) for name, took_s in zip(latency_s, row, strict=True)}
        for name, (job, _) in jobs.items():
            yield {"event": "asked", "t_s": now_s, "client": name, "job": job, "round": number}
        for job, took_s in sorted(jobs.values(), key=lambda one: one[1]):
            yield {"event": "arrived", "t_s": now_s + took_s, "job": job, "num_samples": 100, "compute_s": took_s / 2}
        now_s += max(row)
        yield {"event": "round", "t_s": now_s, "round": number}


def _wrong_recordings() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield recordings in which one value is missing or wrong, or a line is out of place, and what is wrong."""
    events = list(_events({"a": [1.0, 2.0, 1.5], "b": [3.0, 2.5, 3.5]}))
    first = {event.get("event"): place for place, event in reversed(list(enumerate(events)))}
    for kind, place in first.items():
        for key in events[place]:
            rest = {name: value for name, value in events[place].items() if name != key}
            wrong = {f"{key} = {value!r:.20}": rest | {key: value} for value in WRONG}
            for what, event in ({f"no {key}": rest} | wrong).items():
                yield f"{kind}: {what}", [*events[:place], event, *events[place + 1 :]]
    yield "lines in reverse order", events[::-1]
    yield "a line twice", [events[0], *events]


EXTREME: dict[str, Callable[[], dict[str, list[float]]]] = {
    "replies at once": lambda: {"a": [0.0] * 3, "b": [0.0] * 3},
    "times of 100 years": lambda: {"a": [3e9] * 3, "b": [2e9] * 3},
    "10,000 rounds": lambda: {"a": [1.0] * 10_000, "b": [3.0] * 10_000},
    "markup in names": lambda: {MARKUP: [1.0] * 3, "</script>" + MARKUP: [2.0] * 3},
}
"""Latencies of each client in recordings that are valid."""


def trials(_: Undisturbed, short: bool) -> list[Trial]:
    """Return trials with malformed files, extreme recordings, and recordings with wrong values."""
    files = [("recording", "a line of 100 MB"), ("log", "a quote that never ends")]
    if not short:
        files = [(reader, case) for reader in READERS for case in CONTENTS]
    extreme = ["markup in names"] if short else list(EXTREME)
    return [
        *(Trial(f"hostile {reader}", case, partial(_read_malformed, reader, case)) for reader, case in files),
        *(Trial("extreme recording", case, partial(_replay_extreme, case)) for case in extreme),
        Trial("wrong values", "recording", partial(_read_wrong, 20 if short else 300)),
    ]


def _read_malformed(reader: str, case: str, folder: Path, _: random.Random) -> Facts:
    head, argv = READERS[reader]
    (folder / "file").write_bytes(CONTENTS[case](head))
    outcome = call(argv, folder, LIMITS).check(2)
    return {"cpu_s": outcome.cpu_s, "peak_gb": outcome.peak_gb}


def _replay_extreme(case: str, folder: Path, _: random.Random) -> Facts:
    _write(folder / "file", _events(EXTREME[case]()))
    outcome = call(["replay", "file", "--replicates", "2", "--html", "page.html"], folder, LIMITS).check(0, 2)
    page = folder / "page.html"
    assert not page.exists() or MARKUP not in page.read_text(), "names of clients must be escaped"
    return {"cpu_s": outcome.cpu_s, "peak_gb": outcome.peak_gb}


def _read_wrong(at_most: int, folder: Path, rng: random.Random) -> Facts:
    cases, rejected = list(_wrong_recordings()), 0
    for what, events in rng.sample(cases, min(at_most, len(cases))):
        _write(folder / "file", events)
        try:
            rejected += call_here(["replay", str(folder / "file"), "--replicates", "2"]).check(0, 2).status != 0
        except Exception as error:
            raise AssertionError(what) from error
    return {"rejected": rejected}


def _write(path: Path, events: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
