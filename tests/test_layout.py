"""The layers of the package: a module imports only from modules listed above it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lesson

SOURCE = Path(lesson.__file__).parent
ORDER = [
    "lesson.stopping",
    "lesson.errors",
    "lesson.files",
    "lesson.named",
    "lesson.toml_files",
    "lesson.arrays",
    "lesson.streams",
    "lesson.draws",
    "lesson.checked",
    "lesson.variation",
    "lesson.scenario",
    "lesson.faults",
    "lesson.guards",
    "lesson.settings",
    "lesson.radio",
    "lesson.latency",
    "lesson.tiers",
    "lesson.csv_rows",
    "lesson.traces",
    "lesson.attendance",
    "lesson.fleet",
    "lesson.estimates",
    "lesson.fleet_csv",
    "lesson.fleet_columns",
    "lesson.airtime",
    "lesson.strategies",
    "lesson.flight",
    "lesson.records",
    "lesson.rounds",
    "lesson.truth",
    "lesson.simulate",
    "lesson.federation",
    "lesson.on_time",
    "lesson.plan",
    "lesson.learn",
    "lesson.read_back",
    "lesson.summary",
    "lesson",
    "lesson.run_clients",
    "lesson.trackers",
    "lesson.locks",
    "lesson.checkpoints",
    "lesson.run_folder",
    "lesson.runs",
    "lesson.engines",
    "lesson.study",
    "lesson.grid",
    "lesson.sweep",
    "lesson.folders",
    "lesson.paper",
    "lesson.contest",
    "lesson.report",
    "lesson.flower",
    "lesson.cli",
]
FILES = sorted(SOURCE.rglob("*.py"))
SHORTCUTS = {("lesson", "lesson.folders"), ("lesson", "lesson.study"), ("lesson.study", "lesson.report")}
"""What `lesson.load` and the methods that draw look up when they are called, and types name; never on import."""


def layer(module: str) -> int:
    name = module if module in ORDER else ".".join(module.split(".")[:2])
    assert name in ORDER, f"{module} has no place in the order of layers"
    return ORDER.index(name)


def imported_modules(path: Path, *, on_import: bool = False) -> list[str]:
    found = []
    tree = ast.parse(path.read_text())
    for node in tree.body if on_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "lesson":
            found += [f"lesson.{alias.name}" if f"lesson.{alias.name}" in ORDER else "lesson" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


def test_imports_point_one_way() -> None:
    wrong = []
    for path in FILES:
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        here = ".".join(part for part in parts if part != "__init__")
        first = imported_modules(path, on_import=True)
        for module in imported_modules(path):
            shortcut = (here, ".".join(module.split(".")[:2])) in SHORTCUTS and module not in first
            if module.split(".")[0] == "lesson" and not shortcut and layer(module) > layer(here):
                wrong.append(f"{here} imports {module}, which comes later")
    assert wrong == []


def test_contributors_read_the_same_order() -> None:
    table = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text().partition("| module | holds |")[2]
    cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    named = [f"lesson.{name}" for cell in cells for name in re.findall(r"`(\w+)/?`", cell)]
    assert named == [module for module in ORDER if module != "lesson"]


def test_importing_the_package_is_quick() -> None:
    code = "import sys, lesson; print([name for name in ('torch', 'pandas', 'matplotlib') if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"


@pytest.mark.parametrize(
    ("library", "folder"),
    [("torch", "learn"), ("ray", "engines"), ("flwr", "flower"), ("matplotlib", "report"), ("tensorboard", "trackers")],
)
def test_heavy_libraries_stay_where_they_belong(library: str, folder: str) -> None:
    for path in FILES:
        if any(module.split(".")[0] == library for module in imported_modules(path)):
            assert path.relative_to(SOURCE).parts[0] == folder, f"{path} imports {library}"
