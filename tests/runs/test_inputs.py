"""Runs are reused only if the files and the code that their settings name are unchanged."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.runs import settings
from helpers.small_tasks import tiny_task
from lesson import InputError
from lesson.cli import main
from lesson.experiments.engines import InProcessEngine
from lesson.runs.execute import execute
from lesson.runs.inputs import code_digests

FILES = {
    "mine.py": "from lesson import FedAvg\nfrom helper import NAME\n\n\nclass Mine(FedAvg):\n    about = NAME\n",
    "helper.py": "NAME = 'mine'\n",
    "mytask.py": "from helpers.small_tasks import tiny_task\n\n\ndef make():\n    return tiny_task()\n",
    "other.py": "print('this script has nothing to do with the others')\n",
    "squeeze.py": "from lesson.learn.compression.sign import Sign\n\n\nclass Squeeze(Sign):\n    pass\n",
    "lab.csv": "client,latency_s,upload_s\n0,12,2\n1,25,5\n2,40,10\n",
    "work.csv": "client,round,compute_s,upload_s\n0,1,10,2\n1,1,20,5\n2,1,30,10\n",
}
FLAGS = ["--latencies", "lab.csv", "--set", "trace=work.csv", "--task", "mytask:make", "--rounds", "2"]
FLAGS += ["--device", "cpu", "--set", "batch_size=5", "--set", "split=iid", "--set", "compression=squeeze:Squeeze"]
RUN = ["run", "--strategy", "mine:Mine", "--out", "run", *FLAGS]
COMPARE = ["compare", "--strategies", "mine:Mine", "--seeds", "2", "--out", "study", *FLAGS]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a finished run and a finished comparison of a custom strategy, task and compressor."""
    folder = tmp_path_factory.mktemp("finished")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("lesson.experiments.engines.make_engine", lambda **_: InProcessEngine())
        assert main(RUN) == 0
        assert main(COMPARE) == 0
        yield folder
    for name in ("mine", "helper", "mytask", "squeeze"):
        del sys.modules[name]


@pytest.mark.parametrize("name", ["mine.py", "helper.py", "mytask.py", "squeeze.py", "lab.csv", "work.csv"])
def test_changed_input_is_named(finished: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (finished / name).write_text(FILES[name].replace("12", "13").replace("0,1,10", "0,1,11") + "\n")
    try:
        for command in (RUN, [*RUN, "--resume"], COMPARE, [*COMPARE, "--resume"]):
            assert main(command) == 2
            error = capsys.readouterr().err
            assert name in error
            assert error.count("\n") == 1
    finally:
        (finished / name).write_text(FILES[name])


def test_unchanged_runs_are_reused_with_a_note(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (finished / "other.py").write_text("edited\n")
    for command in (RUN, COMPARE):
        assert main(command) == 0
        notes = [line for line in capsys.readouterr().err.splitlines() if "reusing" in line]
        assert len(notes) == 1


def test_failed_run_starts_over_with_the_edited_code(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = (
        "from lesson import FedAvg\nclass Fixed(FedAvg):\n    def merge(self, view, arrived):\n        return 1 / 0\n"
    )
    (finished / "fixed.py").write_text(broken)
    command = ["compare", "--strategies", "fixed:Fixed", "--seeds", "2", "--out", "failed", *FLAGS]
    assert main(command) == 3
    (finished / "fixed.py").write_text(broken.replace("1 / 0", "super().merge(view, arrived)"))
    del sys.modules["fixed"]
    assert main([*command, "--resume"]) == 0
    del sys.modules["fixed"]
    assert main(command) == 0
    assert "reusing 2 finished runs" in capsys.readouterr().err


def test_code_includes_imports_from_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {
        "algorithms/__init__.py": "",
        "algorithms/mine.py": "import json\nimport numpy\nimport lesson\nfrom . import near\nfrom ..above import x\n",
        "algorithms/near.py": "def late():\n    import tools.deep\n    from tools import flat\n",
        "algorithms/unused.py": "",
        "tools/deep.py": "from algorithms.mine import Mine\n",
        "tools/flat.py": "this does not parse\n",
        "json.py": "the module of the standard library has the same name\n",
    }
    for name, text in tree.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = code_digests("algorithms.mine:Mine")
    assert {path.removesuffix(".py") for path in found} == {
        *("algorithms/__init__", "algorithms/mine", "algorithms/near", "tools/deep", "tools/flat")
    }
    assert list(code_digests("pytest:Class")) == ["pytest/__init__.py"], "only the package itself, as it is installed"
    assert code_digests("lesson.strategies:FedAvg") == code_digests("no_such_module:Mine") == {}


def test_code_edited_after_its_import_is_not_executed_unnoticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a notebook would record the edited file for a run of the earlier code."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "edited_strategy.py"
    file.write_text("from lesson import FedAvg\n\n\nclass Mine(FedAvg):\n    about = 1\n")
    chosen = settings(rounds=1).with_strategy("edited_strategy:Mine", {})
    try:
        execute(chosen, tmp_path / "before", task=tiny_task())
        file.write_text(file.read_text().replace("about = 1", "about = 20"))
        with pytest.raises(InputError, match=r"^edited_strategy.py has changed since this process imported it"):
            execute(chosen, tmp_path / "stale", task=tiny_task())
        importlib.reload(sys.modules["edited_strategy"])
        execute(chosen, tmp_path / "after", task=tiny_task())
    finally:
        del sys.modules["edited_strategy"]
    begun = [path.parent.name for path in sorted(tmp_path.glob("*/config.toml"))]
    assert begun == ["after", "before"]
