"""Golden runs: short simulations and training runs whose results must not change by a single bit unintentionally.

    python tools/golden.py                   compare this checkout with the digests in tests/golden.json
    python tools/golden.py --before COMMIT   compare this checkout with a commit, value by value
    python tools/golden.py --write           record the digests of this checkout in tests/golden.json
    python tools/golden.py --gpu             compare losses on this GPU with tests/golden_gpu.json; --write records them

The cases are in golden_cases.py. Digests of timing hold on every machine. Those of training hold on every x86-64 CPU
with the versions in tests/golden.json: there are two sets, `avx2` and `avx512`, and environment variables make torch,
oneDNN and MKL use the same kernels on all CPUs. A CPU with AVX-512 compares both sets. Training cases in which the
server takes square roots have no digests, because nothing fixes MKL's kernels for them; only `--before`, which works
with any versions, compares them. Losses on a GPU are compared with a relative tolerance. The exit status is 0 if all
cases are equal, 1 if one differs or fails, and 2 if the comparison is not possible.
"""

import argparse
import hashlib
import json
import os
import platform
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
RECORDED_GPU = ROOT / "tests" / "golden_gpu.json"
THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
KERNELS = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_CBWR": "COMPATIBLE"},
}
"""Variables that fix the kernels of an instruction set. MKL also considers the CPU's vendor unless it is COMPATIBLE."""
GPU_TOLERANCE = 1e-3
"""Largest relative difference of losses on a GPU, where the composition of a batch affects rounding."""
ABSENT = "(absent)"

Group = dict[str, dict[str, Any]]
"""The timing cases or the training cases: case → file → its values, or their digest."""


class GoldenError(Exception):
    """A comparison is not possible. The message is one line that says why."""


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description="Compare this checkout with the digests in tests/golden.json.")
    options = parser.add_mutually_exclusive_group()
    options.add_argument("--before", metavar="COMMIT", help="compare with this commit instead")
    options.add_argument("--write", action="store_true", help="record the results of this checkout")
    options.add_argument("--json", metavar="FILE", type=Path, help="only write the values of all cases to FILE")
    parser.add_argument("--gpu", action="store_true", help="compare or record losses on this GPU instead")
    chosen = parser.parse_args()
    if chosen.gpu and (chosen.before or chosen.json):
        parser.error("--gpu cannot be combined with --before or --json")
    try:
        if chosen.gpu:
            return write_gpu() if chosen.write else compare_gpu()
        if chosen.json:
            chosen.json.write_text(json.dumps(compute()))
            return 0
        if chosen.before is not None:
            return compare_with_commit(chosen.before)
        return write() if chosen.write else compare_with_recorded()
    except GoldenError as error:
        print(f"golden: {error}", file=sys.stderr)
        return 2


def compare_with_commit(commit: str) -> int:
    """Compare this checkout with a commit and print what differs."""
    sets = instruction_sets() or [""]
    with checked_out(commit) as tree:
        values = compute_all([(root, kernels) for kernels in sets for root in (tree, ROOT)])
    before, now = (_joined({kernels: values[root, kernels] for kernels in sets}) for root in (tree, ROOT))
    for note in only_on_one_side(before, now, f"at {commit}"):
        print(note)
    if not (common := before.keys() & now.keys()):
        raise GoldenError(f"this checkout and {commit} have no case in common")
    return _report(differences(before, now, f"at {commit}"), len(common))


def _joined(values: dict[str, dict[str, Any]]) -> Group:
    """Return the timing cases, which all instruction sets share, and the training cases of each set."""
    cases: Group = {}
    for kernels, groups in values.items():
        cases |= groups["timing"]
        cases |= {f"{case} ({kernels or 'this CPU'})": files for case, files in groups["training"].items()}
    return cases


def compare_with_recorded() -> int:
    """Compare this checkout with the recorded digests and print what differs."""
    recorded = json.loads(RECORDED.read_text())
    reason = why_not(recorded["versions"])
    sets = [] if reason else instruction_sets()
    values = compute_all([(ROOT, kernels) for kernels in sets or [""]])
    first = next(iter(values.values()))
    differing, num = differences_from_recorded(recorded["timing"], first["timing"]), len(first["timing"])
    for kernels in sets:
        training = portable(values[ROOT, kernels])
        lines = differences_from_recorded(recorded[kernels], training)
        differing += [f"{kernels}: {line}" for line in lines]
        num += len(training)
    status = _report(differing, num)
    if differing:
        print(f"To see the values that differ, run: python {SCRIPT} --before COMMIT")
    elif reason:
        raise GoldenError(reason)
    return status


def portable(values: dict[str, Any]) -> Group:
    """Return the training cases that give the same bits on CPUs of all vendors."""
    return {case: values["training"][case] for case in values["portable"]}


def differences_from_recorded(recorded: Group, values: Group) -> list[str]:
    """Return the files whose digest differs from the recorded one, and the cases that exist on one side only."""
    now = digests(values)
    return differences(recorded, now, "recorded") + only_on_one_side(recorded, now, "recorded")


def write() -> int:
    """Record the digests of this checkout, unless a case fails."""
    if instruction_sets() != list(KERNELS):
        raise GoldenError("digests of both instruction sets must be recorded together, on a CPU with AVX-512")
    values = compute_all([(ROOT, kernels) for kernels in KERNELS])
    recorded: dict[str, Any] = {"versions": versions()}
    for kernels in KERNELS:
        groups = values[ROOT, kernels]
        failed = {case: files["error"] for case, files in groups["training"].items() if "error" in files}
        if failed:
            return _report([f"{kernels}: {case}: failed: {error}" for case, error in failed.items()], 0)
        recorded |= {"timing": digests(groups["timing"]), kernels: digests(portable(groups))}
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
    num = sum(len(recorded[group]) for group in ("timing", *KERNELS))
    print(f"golden: recorded {num} cases in {RECORDED.relative_to(ROOT)}")
    return 0


def compare_gpu() -> int:
    """Compare the losses on this GPU with the recorded ones and print what differs."""
    recorded, now = json.loads(RECORDED_GPU.read_text())["losses"], gpu_losses()
    return _report(differing_losses(recorded, now), len(now))


def differing_losses(recorded: dict[str, list[float]], now: dict[str, list[float]]) -> list[str]:
    """Return lines with the first loss of each case that differs by more than the tolerance."""
    lines = [f"{case}: only {'recorded' if case in recorded else 'now'}" for case in recorded.keys() ^ now.keys()]
    for case in recorded.keys() & now.keys():
        pairs = enumerate(zip_longest(recorded[case], now[case], fillvalue=float("nan")), 1)
        wrong = (each for each in pairs if not abs(each[1][0] - each[1][1]) <= GPU_TOLERANCE * abs(each[1][0]))
        if found := next(wrong, None):
            lines.append(f"{case}: round {found[0]}: loss recorded {found[1][0]}, now {found[1][1]}")
    return lines


def write_gpu() -> int:
    """Record the losses on this GPU."""
    import torch

    losses = gpu_losses()
    gpu = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "tolerance": GPU_TOLERANCE}
    RECORDED_GPU.write_text(json.dumps(gpu | {"losses": losses}, indent=1) + "\n")
    print(f"golden: recorded {len(losses)} cases in {RECORDED_GPU.relative_to(ROOT)}")
    return 0


def gpu_losses() -> dict[str, list[float]]:
    """Return the losses of every GPU case."""
    import torch

    if not torch.cuda.is_available():
        raise GoldenError("torch sees no GPU")
    import golden_cases

    return golden_cases.gpu_losses()


def _report(differing: list[str], num_cases: int) -> int:
    print("\n".join(differing) if differing else f"golden: no differences, cases compared: {num_cases}")
    return 1 if differing else 0


# Computing


def compute() -> dict[str, Any]:
    """Return the values of all cases, and the package that they come from."""
    sys.path.append(str(ROOT / "tests"))  # for the helpers that the cases import
    import golden_cases
    import lesson

    return {
        "source": str(Path(lesson.__file__).resolve()),
        "timing": golden_cases.timing_cases(),
        "training": golden_cases.training_cases(),
        "portable": [name for name, case in golden_cases.TRAINING.items() if not case.takes_roots],
    }


def compute_all(pairs: list[tuple[Path, str]]) -> dict[tuple[Path, str], dict[str, Any]]:
    """Return the values of checkouts with the kernels of instruction sets, computed on two cores."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(pairs, pool.map(lambda pair: compute_in(*pair), pairs), strict=True))


def compute_in(root: Path, kernels: str) -> dict[str, Any]:
    """Return the values of all cases for the package in a checkout, computed in a new process.

    A checkout that has this script computes its own cases: each version knows its own names and settings. Without a
    name of an instruction set, libraries choose their own kernels.
    """
    tool = root if (root / SCRIPT).exists() else ROOT
    with tempfile.TemporaryDirectory() as folder:
        fixed = dict.fromkeys(THREADS, "1") | KERNELS.get(kernels, {})
        environment = os.environ | {"PYTHONPATH": str(root / "src")} | fixed
        file = Path(folder, "values.json")
        command = [sys.executable, str(tool / SCRIPT), "--json", str(file)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise GoldenError(f"the cases fail in {root}: {(done.stderr.splitlines() or ['no output'])[-1]}")
        results: dict[str, Any] = json.loads(file.read_text())
    if not Path(results["source"]).is_relative_to(root.resolve()):
        raise GoldenError(f"lesson must be imported from {root}, but came from {results['source']}")
    return results


def instruction_sets() -> list[str]:
    """Return the instruction sets whose kernels this CPU can execute."""
    import torch

    found = torch.backends.cpu.get_cpu_capability().lower()
    return list(KERNELS)[: list(KERNELS).index(found) + 1] if found in KERNELS else []


def versions() -> dict[str, str]:
    """Return the versions on which the bits of a training run depend."""
    import numpy
    import torch

    # sum() of floats is more accurate since Python 3.12
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, "numpy": numpy.__version__, "torch": torch.__version__}


def why_not(recorded: dict[str, str]) -> str:
    """Return why the recorded training cases cannot be compared here; empty if they can."""
    if not instruction_sets():
        return "the training cases need a CPU with AVX2"
    for name, here in versions().items():
        if recorded[name] != here:
            return (
                f"the training cases were recorded with {name} {recorded[name]}, not {here}; "
                f"python {SCRIPT} --before COMMIT compares with a commit"
            )
    return ""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check out a commit into a temporary worktree."""
    name = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if name is None:
        shallow = _git("rev-parse", "--is-shallow-repository") == "true"
        remedy = "; this clone is shallow: run git fetch --unshallow" if shallow else ""
        raise GoldenError(f"unknown commit '{commit}'{remedy}")
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


if __name__ == "__main__":
    sys.exit(main())
