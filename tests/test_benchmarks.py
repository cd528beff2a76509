"""Every benchmark runs a tiny case, and all Python is type-checked, so that none of it can rot."""

import logging
import runpy
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.peers.peers import PEERS, is_installed

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("*.py"))
RUN, STRATEGIES = BENCHMARKS / "peers" / "run.py", BENCHMARKS / "peers" / "strategies.py"
RECIPES = sorted(BENCHMARKS.glob("peers/*/bench.py"))
Run = Callable[..., list[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a script in this process, which has already imported torch; return the table lines it prints.

    Threads and logging are process-wide and are restored, because later tests depend on both.
    """

    def run(path: Path, *arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        monkeypatch.syspath_prepend(path.parent)
        num_threads = torch.get_num_threads()
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            torch.set_num_threads(num_threads)
            logging.disable(logging.NOTSET)
        return [line for line in capfd.readouterr().out.splitlines() if line.startswith("| ")]

    return run


def test_every_benchmark_is_tested() -> None:
    files = [*SCRIPTS, *BENCHMARKS.glob("peers/*.py"), *BENCHMARKS.glob("peers/*/*.py")]
    commands = {path for path in files if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")}
    assert commands == {*SCRIPTS, RUN, STRATEGIES, *RECIPES}
    assert {path.parent.name for path in RECIPES} == set(PEERS)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem == "foundation" else [pytest.mark.slow]) for path in SCRIPTS],
    ids=lambda path: path.name,
)
def test_benchmarks_run_a_tiny_case(path: Path, run: Run) -> None:
    assert len(run(path, "--quick")) >= 2, "no row below the head of a table"


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_recipes_of_peers_run_a_tiny_case(name: str, run: Run) -> None:
    """With this interpreter. Peers that need an environment of their own are not executed: it takes minutes to make."""
    if not is_installed(name):
        pytest.skip(f"{PEERS[name].package} is not installed beside lesson; its recipe is type-checked only")
    (row,) = run(RUN, "--quick", "--only", name)[1:]
    assert PEERS[name].title in row


@pytest.mark.slow
def test_strategies_of_this_project_are_compared(run: Run) -> None:
    """The other implementations are not run: their packages need versions that exclude each other."""
    rows = run(STRATEGIES, "--quick")[1:]
    assert rows
    assert all(row.split("|")[5].strip() for row in rows)


def test_all_python_is_type_checked() -> None:
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["files"]
    folders = {path.name for path in ROOT.glob("[a-z]*") if path.is_dir() and any(path.rglob("*.py"))}
    assert folders - {"build", "dist", "runs", "site", "tests"} | {"tests/stress"} == set(checked)
