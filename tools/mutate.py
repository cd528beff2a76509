"""Mutation testing: make small random changes to a package, one at a time, and count how many its tests notice.

    python tools/mutate.py clock strategies --count 8 --seed 1     8 mutations of each package, run against its tests
    python tools/mutate.py learn --tests tests/learn tests/runs     run other tests

A mutation swaps an operator, a comparison or a constant, negates a condition, returns None, or drops a statement. What
has no right or wrong value is left alone: log messages, error messages, limits such as WAIT_S = 300, and code that only
a GPU executes. Each mutation is made in a copy of the source, so the checkout is never changed. The table is printed in
Markdown, survivors last. The exit status is 1 if fewer than 85 % of the mutations are noticed ("killed").
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
NEEDS_GPU = "learn/cuda/"
MESSAGE = re.compile(r"\b(_?log\w*|_?tell\w*|print|warn\w*|info|debug)\(")
REQUIRED = 0.85
SWAPS: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.And: "or",
    ast.Or: "and",
}


@dataclass(frozen=True)
class Mutation:
    """A replacement of the code between two positions (line from 1, column in bytes) of a file."""

    path: Path
    start: tuple[int, int]
    end: tuple[int, int]
    code: str

    def apply(self, source: str) -> str:
        """Return the source with the replacement."""
        lines = [line.encode() for line in source.splitlines(keepends=True)]
        (first, begin), (last, stop) = self.start, self.end
        changed = lines[first - 1][:begin] + self.code.encode() + lines[last - 1][stop:]
        return b"".join([*lines[: first - 1], changed, *lines[last:]]).decode()

    def describe(self) -> str:
        """Return the place, the code before and the code after."""
        lines = (SOURCE / self.path).read_text().splitlines()[self.start[0] - 1 : self.end[0]]
        code = " ".join(line.strip() for line in lines)
        after = " ".join(self.apply((SOURCE / self.path).read_text()).splitlines()[self.start[0] - 1].split())
        short = (text if len(text) <= 90 else f"{text[:87]}..." for text in (code, after))
        return f"{self.path.relative_to('lesson')}:{self.start[0]} | " + " | ".join(f"`{text}`" for text in short)


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description="Count how many random changes to a package its tests notice.")
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", help="a folder of src/lesson")
    parser.add_argument("--count", type=int, default=8, help="mutations of each package (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the choice (default: %(default)s)")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="tests to run (default: tests/PACKAGE)")
    parser.add_argument("--jobs", type=int, default=1, help="mutations tested at a time (default: %(default)s)")
    chosen = parser.parse_args()
    if min(chosen.count, chosen.jobs) < 1:
        parser.error("--count and --jobs must be >= 1")
    drawn = {package: draw_mutations(package, chosen.count, chosen.seed) for package in chosen.packages}
    if empty := [package for package, mutations in drawn.items() if not mutations]:
        parser.error(f"nothing to mutate in src/lesson/{empty[0]}")
    killed: list[str] = []
    survived: list[str] = []
    for package, mutations in drawn.items():
        tests = chosen.tests or [f"tests/{package}"]
        began = time.monotonic()
        if run_tests(tests, None) != 0:
            print(f"mutate: {' '.join(tests)} must pass without a mutation", file=sys.stderr)
            return 2
        timeout_s = 60 + 3 * (time.monotonic() - began)
        with ThreadPoolExecutor(chosen.jobs) as pool:
            results = pool.map(partial(run_tests, tests, timeout_s), mutations)
            for mutation, status in zip(mutations, results, strict=True):
                line = f"| {mutation.describe()} | {'survived' if status == 0 else 'killed'} |"
                print(line, file=sys.stderr, flush=True)
                (killed if status else survived).append(line)
    print("| place | before | after | result |\n|---|---|---|---|")
    print("\n".join(killed + survived))
    num = len(killed) + len(survived)
    print(f"\n{len(killed)} of {num} mutations killed ({len(killed) / num:.0%}), seed {chosen.seed}")
    return int(len(killed) < REQUIRED * num)


def draw_mutations(package: str, count: int, seed: int) -> list[Mutation]:
    """Return random mutations of a package, without code that runs on a GPU only."""
    found: list[Mutation] = []
    for path in sorted((SOURCE / "lesson" / package).rglob("*.py")):
        if NEEDS_GPU not in path.as_posix():
            source = path.read_text()
            candidates = _mutations(path.relative_to(SOURCE), source, ast.parse(source))
            found += [each for each in candidates if _compiles(each.apply(source))]
    return random.Random(f"{package} {seed}").sample(found, min(count, len(found)))


def _compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _mutations(path: Path, source: str, node: ast.AST) -> Iterator[Mutation]:
    """Yield every mutation of a file except in annotations, imports, messages and limits."""
    match node:
        case ast.Raise() | ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return
        case ast.Expr(value=ast.Call(func=function)) if MESSAGE.search(f"{ast.unparse(function)}("):
            return
        case ast.Assign(targets=[ast.Name(id=name)]) if name.isupper():
            return
    yield from _operators(path, source, node)
    for changed, code in _replacements(node):
        yield Mutation(path, _start(changed), _end(changed), code)
    annotations = [getattr(node, name, None) for name in ("annotation", "returns")]
    for child in ast.iter_child_nodes(node):
        if child not in annotations:
            yield from _mutations(path, source, child)


def _operators(path: Path, source: str, node: ast.AST) -> Iterator[Mutation]:
    """Yield the swap of the operator between two operands. Brackets around the operands stay."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            pass
        case ast.BinOp(left=left, op=operator, right=right) | ast.BoolOp(op=operator, values=[left, right]):
            pass
        case _:
            return
    ends = (ast.unparse(operand).rpartition(".")[2] for operand in (left, right))
    if type(operator) in SWAPS and not (isinstance(node, ast.Compare) and any(map(str.isupper, ends))):
        (first, begin), (last, stop) = _end(left), _start(right)
        lines = [line.encode() for line in source.splitlines(keepends=True)][first - 1 : last]
        code = b"".join(lines)[begin : stop - len(lines[-1])].decode()
        symbols = code.strip("() \n\\")
        yield Mutation(path, _end(left), _start(right), code.replace(symbols, f" {SWAPS[type(operator)]} ", 1))


def _replacements(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the node to replace and its replacement."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, ast.unparse(operand)
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as number):
            yield node, repr(number + 1)
        case ast.If(test=test) | ast.IfExp(test=test) if ast.unparse(test) != "TYPE_CHECKING":
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield value, "None"
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield node, "pass"


def _start(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def run_tests(tests: list[str], timeout_s: float | None, mutation: Mutation | None = None) -> int:
    """Return the exit status of pytest on a copy of the source with a mutation; 1 if it takes too long.

    Test files named after the mutated module run first.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "src")
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        first: list[Path] = []  # files whose name fits, so that most mutations are killed soon
        if mutation:
            file = copy / mutation.path
            file.write_text(mutation.apply(file.read_text()))
            pattern = f"test_*{mutation.path.stem.strip('_')}*.py"
            first = [path for test in tests for path in sorted((ROOT / test).rglob(pattern))]
        options = ["-x", "-q", "-p", "no:cacheprovider", "--keep-duplicates"]  # else, pytest keeps its own order
        command = [sys.executable, "-m", "pytest", *options, *map(str, first), *tests]
        environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        output = subprocess.DEVNULL if mutation else sys.stderr  # stdout is for the table
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, timeout=timeout_s, stdout=output, stderr=output)
        except subprocess.TimeoutExpired:
            return 1
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())
