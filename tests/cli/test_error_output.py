"""What commands print if something fails: one line, and the traceback of an exception in the user's code."""

import errno
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

from helpers.small_tasks import tiny_task
from lesson import FedAvg, InputError, Task
from lesson.cli import main
from lesson.experiments.engines import InProcessEngine
from lesson.experiments.engines.trial import execute_trial
from lesson.settings.settings import Settings


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the output cannot be written: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "plan.csv"), "plan.csv cannot be used: Permission denied"),
        (ConnectionError("the server is down"), "the server is down"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "ConnectionRefusedError: "),
    ],
)
def test_an_os_error_is_one_line_that_says_what_failed(
    error: OSError, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("lesson.cli.cli.invoke", fail)
    monkeypatch.setattr("lesson.cli._forget_output", lambda: None)
    assert main(["plan"]) == 2
    shown = capsys.readouterr().err
    assert line in shown
    assert shown.count("\n") == 1


def test_commands_do_not_hide_floating_point_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("lesson.cli.cli.invoke", lambda _: seen.append(np.geterr()))
    assert main(["plan"]) == 0
    assert seen == [np.geterr()]


class Broken(FedAvg):
    """A strategy with a bug."""

    def merge(self, *_: object) -> None:  # type: ignore[override]
        self._divide()

    def _divide(self) -> None:
        raise ZeroDivisionError("this bug")


def broken_task() -> Task:
    return _read("nowhere.csv")


def _read(path: str) -> Task:
    return Task(Path(path).open())  # type: ignore[call-arg, arg-type]


class Unscored(nn.Module):
    """A model that can be trained but not evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.layer(inputs.flatten(1)[:, :4])
        return outputs if self.training else outputs.view(-1, 7 * len(outputs))  # fails in PyTorch


def unscored_task() -> Task:
    return replace(tiny_task(), model=Unscored)


QUICK = ["--rounds", "1", "--set", "num_clients=4", "--set", "batch_size=5", "--set", "split=iid", "--device", "cpu"]
TASK = ["--task", "helpers.small_tasks:tiny_task"]


@pytest.mark.parametrize(
    ("command", "frame", "line"),
    [
        (["run", "--task", f"{__name__}:broken_task"], "in _read", "lesson: task"),
        (["run", "--strategy", f"{__name__}:Broken", *TASK], "in _divide", "lesson: "),
        (["compare", "--strategies", f"{__name__}:Broken", "--seeds", "1", *TASK], "in _divide", "lesson: "),
    ],
)
def test_an_exception_in_custom_code_keeps_its_traceback(
    command: list[str],
    frame: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda **_: InProcessEngine())
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert main([*command, *QUICK, "--out", str(tmp_path / "out")]) in (2, 3)
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert frame in shown
    assert shown.splitlines()[-1].startswith(line)


def test_a_model_that_fails_during_a_run_is_named_once_with_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    command = ["run", "--task", f"{__name__}:unscored_task", *QUICK, "--out", str(tmp_path / "out")]
    assert main(command) == 3
    shown = capsys.readouterr().err
    assert shown.count("Traceback") == 1
    last = shown.splitlines()[-1]
    assert last.startswith(f"lesson: {__name__}:unscored_task: RuntimeError: ")
    assert f"({Path(__file__).name}, line " in last


def test_a_mistake_in_a_command_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--task", "nowhere:task"], ["--task", f"{__name__}:nothing"], ["--strategy", "leson"]):
        assert main(["run", *flags]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_python_sees_the_cause() -> None:
    from lesson.learn.template import Template

    def model() -> object:
        return _read("nowhere.csv")

    with pytest.raises(InputError) as caught:
        Template(Task(train=tiny_task().train, test=tiny_task().test, model=model), 0)  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_processes_send_the_traceback(tmp_path: Path) -> None:
    line = execute_trial(tmp_path, Settings(dataset=f"{__name__}:broken_task", rounds=1), progress=None)
    assert "in _read" in line["traceback"]
