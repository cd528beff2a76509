"""The package as users see it: the description on its page, its extras and its version."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lesson

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/lesson-fl/lesson"
FILES = (f"{REPOSITORY}/blob/main/", "https://raw.githubusercontent.com/lesson-fl/lesson/main/")
LINK = re.compile(r'\]\(([^)\s]+)[^)]*\)|\b(?:src|srcset|href)="([^"]+)"|^\[[^\]]+\]:\s*(\S+)', re.MULTILINE)
CODE = re.compile(r"^```.*?^```|``?[^`\n]+``?", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """The tables of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def description() -> str:
    """The README as the built package contains it."""
    command = [sys.executable, "-m", "hatch_fancy_pypi_readme"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def links(markdown: str) -> list[str]:
    """Return the targets of all links and images outside code."""
    return ["".join(groups) for groups in LINK.findall(CODE.sub("`code`", markdown))]


def test_links_of_the_description_are_absolute_and_not_broken(description: str) -> None:
    assert len(links(description)) == len(links((ROOT / "README.md").read_text(encoding="utf-8"))) > 0
    assert [link for link in links(description) if not link.startswith("https://")] == []
    paths = [
        link.removeprefix(start).partition("#")[0] for link in links(description) for start in FILES if start in link
    ]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_flower_and_its_simulation_have_the_same_versions(metadata: dict[str, Any]) -> None:
    extras = metadata["project"]["optional-dependencies"]
    deployment, simulation = extras["flower"], extras["flower-simulation"]
    assert [one.replace("[simulation]", "") for one in simulation] == deployment


def test_imported_packages_are_declared(metadata: dict[str, Any]) -> None:
    project = metadata["project"]
    listed = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    declared = {canonicalize_name(Requirement(one).name) for one in listed}
    sources = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")]
    nodes = [node for source in sources for node in ast.walk(source)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    modules = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    modules -= {"lesson", "pydantic_core", "triton"}  # the last two belong to pydantic and torch
    packages = packages_distributions()
    assert {
        one for one in modules if not declared & {canonicalize_name(name) for name in packages.get(one, [one])}
    } == set()


def test_missing_flower_is_an_error_that_names_the_extras() -> None:
    code = "import sys; sys.modules['flwr'] = None; import lesson.flower"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "'lesson-fl[flower]'" in result.stderr


def test_changelog_and_citation_have_the_version() -> None:
    version = re.escape(lesson.__version__)
    dated = re.search(
        rf"^## \[?{version}\]? - (\d{{4}}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert dated
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {version}$", citation, re.MULTILINE)
    assert f"date-released: {dated[1]}" in citation.replace("'", "").replace('"', "")
