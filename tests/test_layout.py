"""Imports between packages point one way, and heavy libraries stay where they belong."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import lesson

SOURCE = Path(lesson.__file__).parent
PACKAGES = (
    *("core", "settings", "radio", "fleet", "strategies", "clock", "testing", "planning", "flight", "learn"),
    *("runs", "experiments", "paper", "report", "flower", "cli"),
)
"""A package imports only from those before it."""
ORDER = (*PACKAGES[: PACKAGES.index("flower")], "api", *PACKAGES[PACKAGES.index("flower") :])
"""The public API, api.py, may use everything but Flower and the command line, which may use it."""
DRAWING = ("experiments", "report")
"""The exception: runs and studies draw themselves, and import what draws them inside those methods."""
FILES = sorted(SOURCE.rglob("*.py"))


@cache
def imports_of(path: Path) -> list[tuple[str, bool]]:
    """Return each module that a file imports, and whether it does so on import rather than inside a function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    at_once = {id(node) for statement in tree.body if not is_deferred(statement) for node in ast.walk(statement)}
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "lesson":
            names = [f"lesson.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        found += [(name, id(node) in at_once) for name in names]
    return found


def is_deferred(statement: ast.stmt) -> bool:
    """Whether a top-level statement is not executed on import: a definition, or imports for type checkers."""
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test) == "TYPE_CHECKING"
    return isinstance(statement, ast.FunctionDef | ast.ClassDef)


def test_only_packages_and_the_public_api_lie_at_the_top() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(PACKAGES)
    assert {path.name for path in SOURCE.glob("*.py")} == {"__init__.py", "__main__.py", "api.py"}


def test_imports_between_packages_point_one_way() -> None:
    wrong = []
    for path in FILES:
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if package in ("__init__", "__main__"):  # the first one imports the public names when they are first used
            continue
        for name, at_once in imports_of(path):
            parts = name.split(".")
            if parts[0] != "lesson":
                continue
            other = parts[1] if len(parts) > 1 else "lesson"
            if (package, other) == DRAWING and not at_once:
                continue
            if other not in ORDER or ORDER.index(other) > ORDER.index(package):
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert wrong == []


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import lesson; dir(lesson), lesson.__version__, lesson.Settings", {"ray", "flwr"}),
        ("from lesson.flower import report_times", {"lesson.flight", "pydantic"}),
    ],
)
def test_imports_load_only_what_they_need(code: str, heavy: set[str]) -> None:
    """Flower starts a process for every message to a client, and each of them imports the client's app again."""
    heavy = heavy | {"torch", "pandas", "matplotlib", "scipy"}
    code = f"import sys; {code}; print({heavy} & {{*sys.modules}})"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "set()\n"


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("torch", ["learn", "runs/tensorboard.py"]),
        ("ray", ["experiments/engines/ray.py"]),
        ("flwr", ["flower"]),
        ("matplotlib", ["report"]),
    ],
)
def test_heavy_libraries_stay_where_they_belong(library: str, allowed: list[str]) -> None:
    for path in FILES:
        if any(name.split(".")[0] == library for name, _ in imports_of(path)):
            place = path.relative_to(SOURCE)
            assert any(place.is_relative_to(one) for one in allowed), f"{place} imports {library}"
