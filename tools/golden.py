"""Golden runs: short simulations and training runs whose results must not change by a single bit unintentionally.

    python tools/golden.py                   compare this checkout with the digests in tests/golden.json
    python tools/golden.py --before COMMIT   compare this checkout with a commit, value by value, on any machine
    python tools/golden.py --write           record the digests of this checkout in tests/golden.json

The cases are in golden_cases.py. Digests of timing hold on every machine, those of training only on the kind of machine
that tests/golden.json names. The exit status is 0 if all cases are equal, 1 if one differs or fails, and 2 if the
comparison is not possible.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = Path("tools", "golden.py")
RECORDED = ROOT / "tests" / "golden.json"
GROUPS = ("timing", "training")
THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Processor flags and environment variables by which torch, oneDNN, MKL, OpenBLAS, numpy and libc choose their code.
FLAGS = re.compile(r"(3dnow|abm|amx|avx|bmi|f16c|fma|sse|ssse)\w*")
OVERRIDES = re.compile(r"(ATEN_CPU|DNNL|GLIBC_TUNABLES|MKL|NPY|ONEDNN|OPENBLAS)\w*")
ABSENT = "(absent)"

Group = dict[str, dict[str, Any]]
"""The timing cases or the training cases: case → file → its values, or their digest."""


class GoldenError(Exception):
    """A comparison is not possible. The message is one line that says why."""


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description="Compare this checkout with the digests in tests/golden.json.")
    options = parser.add_mutually_exclusive_group()
    options.add_argument("--before", metavar="COMMIT", help="compare with this commit instead, on any machine")
    options.add_argument("--write", action="store_true", help="record the digests of this checkout")
    options.add_argument("--json", metavar="FILE", type=Path, help="only write the values of all cases to FILE")
    chosen = parser.parse_args()
    try:
        if chosen.json:
            chosen.json.write_text(json.dumps(compute()))
            return 0
        if chosen.before:
            return compare_with_commit(chosen.before)
        return write() if chosen.write else compare_with_recorded()
    except GoldenError as error:
        print(f"golden: {error}", file=sys.stderr)
        return 2


def compare_with_commit(commit: str) -> int:
    """Compare this checkout with a commit and print what differs."""
    with checked_out(commit) as tree, ThreadPoolExecutor() as pool:
        before, now = pool.map(compute_in, (tree, ROOT))
    differing, common = [], 0
    for group in GROUPS:
        differing += differences(before[group], now[group], f"at {commit}")
        common += len(before[group].keys() & now[group].keys())
        for note in only_on_one_side(before[group], now[group], f"at {commit}"):
            print(note)
    if not common:
        raise GoldenError(f"this checkout and {commit} have no case in common")
    return _report(differing, common)


def compare_with_recorded() -> int:
    """Compare this checkout with the recorded digests and print what differs."""
    recorded, now = json.loads(RECORDED.read_text()), compute_in(ROOT)
    other = other_machine(recorded["machine"], now["machine"])
    groups = GROUPS[:1] if other else GROUPS
    differing = [line for group in groups for line in differences_from_recorded(recorded[group], now[group])]
    status = _report(differing, sum(len(now[group]) for group in groups))
    if differing:
        print(f"To see the values that differ, run: python {SCRIPT} --before COMMIT")
    elif other:
        raise GoldenError(other)
    return status


def differences_from_recorded(recorded: Group, values: Group) -> list[str]:
    """Return the files whose digest differs from the recorded one, and the cases that exist on one side only."""
    now = digests(values)
    return differences(recorded, now, "recorded") + only_on_one_side(recorded, now, "recorded")


def write() -> int:
    """Record the digests of this checkout, unless a case fails."""
    now = compute_in(ROOT)
    if failed := [line for group in GROUPS for line in differences(now[group], now[group], "here")]:
        return _report(failed, 0)
    recorded = {"machine": now["machine"]} | {group: digests(now[group]) for group in GROUPS}
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"golden: recorded {sum(len(now[group]) for group in GROUPS)} cases in {RECORDED.relative_to(ROOT)}")
    return 0


def _report(differing: list[str], num_cases: int) -> int:
    print("\n".join(differing) if differing else f"golden: no differences, cases compared: {num_cases}")
    return 1 if differing else 0


# Computing


def compute() -> dict[str, Any]:
    """Return the values of all cases, with the package and the machine that they come from."""
    sys.path.append(str(ROOT / "tests"))  # for the helpers that the cases import
    import golden_cases
    import lesson

    return {
        "source": str(Path(lesson.__file__).resolve()),
        "machine": describe_machine(),
        "timing": golden_cases.timing_cases(),
        "training": golden_cases.training_cases(),
    }


def compute_in(root: Path) -> dict[str, Any]:
    """Return the values of all cases for the package in another checkout, computed in a new process.

    A checkout that has this script computes its own cases: each version knows its own names and settings.
    """
    tool = root if (root / SCRIPT).exists() else ROOT
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(root / "src")} | dict.fromkeys(THREADS, "1")
        file = Path(folder, "values.json")
        command = [sys.executable, str(tool / SCRIPT), "--json", str(file)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise GoldenError(f"the cases fail in {root}: {(done.stderr.splitlines() or ['no output'])[-1]}")
        results: dict[str, Any] = json.loads(file.read_text())
    if not Path(results["source"]).is_relative_to(root.resolve()):
        raise GoldenError(f"lesson must be imported from {root}, but came from {results['source']}")
    return results


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check out a commit into a temporary worktree."""
    name = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if name is None:
        raise GoldenError(f"unknown commit '{commit}'")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "before").resolve()
        if _git("worktree", "add", "--quiet", "--detach", str(tree), name) is None:
            raise GoldenError(f"git cannot check out {commit} in {tree}")
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> str | None:
    """Return the output of a git command; None if it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def describe_machine() -> dict[str, str]:
    """Return everything besides the package that the bits of a training run depend on."""
    import numpy
    import torch

    cpu = _read_cpuinfo()
    flags = cpu.get("flags", cpu.get("Features", "")).split()
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    kind = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
    return {
        "cpu": " ".join(f"{name} {cpu[name]}" for name in kind if name in cpu) or platform.processor(),
        "instructions": " ".join(sorted(flag for flag in flags if FLAGS.fullmatch(flag) or "Features" in cpu)),
        "caches": " ".join(path.read_text().strip() for path in caches),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "overrides": " ".join(
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if OVERRIDES.fullmatch(name) and name not in THREADS
        ),
        "system": " ".join([platform.system(), platform.machine(), *platform.libc_ver()]),
        "python": ".".join(platform.python_version_tuple()[:2]),  # sum() of floats is more accurate since 3.12
        "numpy": numpy.__version__,
        "torch": torch.__version__,
    }


def _read_cpuinfo() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo; empty if there is no such file."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    return dict(re.findall(r"^(.*?)\s*: (.*)$", first, re.MULTILINE))


# Comparing


def digests(group: Group) -> Group:
    """Return a digest of each file of each case. It differs if a single bit does, as JSON represents floats exactly."""
    return {
        case: {file: values if file == "error" else _digest(values) for file, values in files.items()}
        for case, files in group.items()
    }


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def differences(before: Group, now: Group, label: str) -> list[str]:
    """Return lines with the first value that differs in each file of each common case, and with all errors of cases.

    A field that no case had before is not compared: see `only_on_one_side`.
    """
    lines, added = [], _added_fields(before, now)
    for case in (case for case in before if case in now):
        old, new = dict(before[case]), dict(now[case])
        sides = ((label, old), ("now", new))
        errors = [f"{case}: failed {side}: {files.pop('error')}" for side, files in sides if "error" in files]
        for file in old | new:
            if errors and not (file in old and file in new):
                continue  # the error says why
            if (found := first_difference(old.get(file, ABSENT), new.get(file, ABSENT), added)) is not None:
                path, one, other = found
                lines.append(f"{case}: {file}{path}: {label} {one}, now {other}")
        lines += errors
    return lines


def first_difference(
    before: Any, now: Any, ignored: AbstractSet[str] = frozenset(), path: str = ""
) -> tuple[str, Any, Any] | None:
    """Return the path of the first value that differs, and both values; None if everything is equal."""
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(before, dict) and isinstance(now, dict):
        names = (name for name in before | now if name not in ignored)
        parts = [(f": {name}", before.get(name, ABSENT), now.get(name, ABSENT)) for name in names]
    elif isinstance(before, list) and isinstance(now, list):
        pairs = enumerate(zip_longest(before, now, fillvalue=ABSENT))
        parts = [(_place(old, number), old, new) for number, (old, new) in pairs]
    elif json.dumps(before) != json.dumps(now):
        return path, before, now
    found = (first_difference(old, new, ignored, path + name) for name, old, new in parts)
    return next(filter(None, found), None)


def _place(item: Any, number: int) -> str:
    """Return the name of an item of a list: the round of a round's record, otherwise the position."""
    return f": round {item['round']}" if isinstance(item, dict) and "round" in item else f"[{number}]"


def only_on_one_side(before: Group, now: Group, label: str) -> list[str]:
    """Return one line per case that exists on one side only, and per new field."""
    return [
        *(f"{case}: only {label}" for case in before if case not in now),
        *(f"{case}: only now" for case in now if case not in before),
        *(f"field '{name}': only now, not compared" for name in sorted(_added_fields(before, now))),
    ]


def _added_fields(before: Group, now: Group) -> AbstractSet[str]:
    """Return the names of fields that the common cases have now and none of them had before."""
    common = before.keys() & now.keys()
    old, new = ({name for case in common for name in _names(list(side[case].values()))} for side in (before, now))
    return new - old


def _names(value: Any) -> Iterator[str]:
    """Yield the names in nested dictionaries and lists."""
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names(part)
    if isinstance(value, dict):
        yield from value


def other_machine(recorded: dict[str, str], here: dict[str, str]) -> str:
    """Return why recorded training cases cannot be compared on this machine; empty if they can."""
    for name in recorded | here:
        there, found = recorded.get(name, ABSENT), here.get(name, ABSENT)
        if there != found:
            return (
                f"the training cases were recorded on another kind of machine ({name} is '{there}' there, '{found}' "
                f"here); python {SCRIPT} --before COMMIT compares with a commit on this one"
            )
    return ""


if __name__ == "__main__":
    sys.exit(main())
