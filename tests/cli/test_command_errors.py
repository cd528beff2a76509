"""Errors of commands: one line on stderr, and the traceback of an exception in the user's code."""

import errno
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

import lesson
from helpers.flights import write_flight
from helpers.small_tasks import tiny_task
from lesson import FedAvg, InputError, Task
from lesson.cli import main
from lesson.experiments.engines import InProcessEngine
from lesson.experiments.engines.trial import execute_trial
from lesson.settings.settings import Settings

INVALID = [
    ("plam", "'plan'"),
    ("--version=1", "--version"),
    ("--json plan", "'--json'"),
    ("--print-completion tcsh", "--print-completion"),
    ("plan extra", "'extra'"),
    ("plan --dedline 3", "'--deadline'"),
    ("plan --deadline", "--deadline"),
    ("plan --deadline -1", "deadline_s"),
    ("plan --deadline soon", "--deadline"),
    ("plan --figure --json", "--figure"),
    ("plan --seed 1 --seed 2", "--seed"),
    ("plan --on-time 0.9", "--on-time"),
    ("plan --deadline auto --on-time 90", "--on-time"),
    ("plan --deadline auto --on-time 0.9", "latencies vary"),
    ("plan --clients 0", "num_clients"),
    ("plan --rounds 0", "rounds"),
    ("plan --scenario relased", "'released'"),
    ("plan --scenario none.toml", "none.toml"),
    ("plan --latencies none.csv", "none.csv"),
    ("plan --latencies fleet.csv --clients 5", "--clients"),
    ("plan --latencies fleet.csv --set fading=rayleigh", "fading"),
    ("plan --set radio.powr_w=1", "'power_w'"),
    ("plan --set radio.noise_dbm=1e5", "no client can be reached"),
    (f"plan --set radio.power_w={'1' * 5000}", "power_w"),
    ("plan --set 'x\ny'", "section.key=value"),
    ("plan --figure plan.gif", "figure"),
    ("plan --figure nowhere/plan.png", "figure"),
    ("plan --html nowhere/plan.html", "html"),
    ("plan --flight none.jsonl", "none.jsonl"),
    ("plan --flight damaged.jsonl --html plan.html", "damaged.jsonl line 2"),
    ("plan --flight rec.jsonl --latencies fleet.csv", "--latencies"),
    ("run --strategy leson", "'lesson'"),
    ("run --strategy nowhere:Thing", "'nowhere:Thing'"),
    ("run --dataset cifar10 --data-dir none", "data_batch_1.bin"),
    ("run --beta 0", "[data] beta"),
    ("run --set strategy.late=wait", "[strategy] late"),
    ("run --time-budget inf", "time_budget_s"),
    ("run --task nowhere:task", "nowhere"),
    ("run --dataset mnist --task a:b", "--task"),
    ("run --out --resume", "--out"),
    ("run --rounds 1 --set rounds=2", "run.rounds"),
    (f"run --rounds {'int' * 40_000}", "--rounds"),
    ("compare --strategies lesson,lesson", "--strategies"),
    ("compare --seeds 0", "--seeds"),
    ("compare --set strategy.name=lesson", "strategy.name"),
    ("compare --set strategy.lat=drop", "'late'"),
    ("compare --set fedbuff.concurrency=5", "fedbuff.concurrency"),
    ("compare --set lesson.late=drop --set strategy.late=drop", "strategy.late"),
    ("data cifar11", "'cifar10'"),
    ("sweep", "SETTINGS.toml"),
    ("sweep none.toml", "none.toml"),
    ("sweep none.toml --entries lesson", "--entries"),
    ("sweep --tune --set run.rounds=2", "--set"),
    ("sweep --tune --entries leson", "'lesson'"),
    ("sweep --tune --seconds -1", "--seconds"),
    ("sweep none.toml --engine dask", "'dask'"),
    ("sweep none.toml --cpus-per-trial 0", "--cpus-per-trial"),
    ("sweep none.toml --engine ray --gpus-per-trial -1", "--gpus-per-trial"),
    ("sweep none.toml --address a:1", "--address"),
    ("report", "DIR"),
    ("report none --figures pdf", "none"),
    ("report . --figures pdf", ". holds no finished run"),
    ("report a b", "--out"),
    ("report . --figures pdf,gif", "'gif'"),
    ("report . --figures pdf --width 1mm", "--width"),
    ("reproduce fig55", "'fig5'"),
    ("reproduce fig4 --eval-jitter 1.5", "--eval-jitter"),
    ("reproduce fig4 --seeds 0", "seeds"),
    ("replay fleet.csv", "a recording must start with"),
    ("replay rec.jsonl --strategies ''", "--strategies"),
    ("replay rec.jsonl --strategies oort", "update_loss"),
    ("replay rec.jsonl --deadline -1", "--deadline"),
    ("replay rec.jsonl --replicates 1", "replicates"),
    ("replay rec.jsonl --time-budget 0", "--time-budget"),
    ("replay rec.jsonl --set num_clients=3", "--set"),
    ("replay rec.jsonl --check --json", "--check"),
    ("replay rec.jsonl --check --set fedbuff.concurrency=1", "fedavg"),
    ("replay rec.jsonl --out x", "--dataset"),
    ("replay rec.jsonl --strategies fedcs --deadline 1 --dataset mnist --out x", "fedcs, 1 s"),
    ("record", "import"),
    ("record import none.csv", "none.csv"),
    ("record import fleet.csv", "fleet.csv line 1"),
    ("record import fleet.csv -o x.csv", "--out"),
    ("strategies leson", "'lesson'"),
    ("settings noise_db", "'noise_dbm'"),
]


@pytest.mark.parametrize(("command", "names"), INVALID, ids=lambda value: value[:60])
def test_invalid_input_prints_one_line_and_exits_with_2(
    command: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.csv").write_text("client,latency_s\na,40\nb,12.3\nc,10\n")
    Path("damaged.jsonl").write_text('{"flight": 1}\n{"event": "asked", "t_s": 1, "client": "a"}\n')
    write_flight(Path("rec.jsonl"), [[4.0, 9.0, 19.0]] * 8)
    before = sorted(tmp_path.iterdir())
    assert main(shlex.split(command)) == 2
    output = capsys.readouterr()
    assert output.err.startswith("lesson: ")
    assert names in output.err
    assert output.err.count("\n") == 1
    assert all(line.startswith("note: ") for line in output.out.splitlines())
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the output cannot be written"),
        (PermissionError(errno.EACCES, "Permission denied", "plan.csv"), "plan.csv"),
        (ConnectionError("the server is down"), "the server is down"),
    ],
)
def test_os_error_says_what_failed(
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


class Raising(nn.Module):
    """A model that raises an exception in training, in evaluation, or always, even when it is tried out."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.layer, self.when = nn.Linear(4, 3), when

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.flatten(1)[:, :4])
        is_trying = len(inputs) < 5  # fewer samples than in a minibatch
        fails = {"always": True, "training": self.training and not is_trying, "evaluation": not self.training}
        return outputs.view(-1, 7 * len(outputs)) if fails[self.when] else outputs  # fails in PyTorch


def always_raising() -> Task:
    return replace(tiny_task(), model=partial(Raising, "always"))


def raising_in_training() -> Task:
    return replace(tiny_task(), model=partial(Raising, "training"))


def raising_in_evaluation() -> Task:
    return replace(tiny_task(), model=partial(Raising, "evaluation"))


QUICK = ["--rounds", "1", "--set", "num_clients=4", "--set", "batch_size=5", "--set", "split=iid", "--device", "cpu"]
TASK = ["--task", "helpers.small_tasks:tiny_task"]


@pytest.mark.parametrize(
    ("command", "frame"),
    [
        (["run", "--task", f"{__name__}:broken_task"], "in _read"),
        (["run", "--task", f"{__name__}:always_raising"], "in forward"),
        (["run", "--task", f"{__name__}:raising_in_evaluation"], "in forward"),
        (["run", "--task", f"{__name__}:raising_in_training"], "in forward"),  # in a thread
        (["run", "--task", f"{__name__}:raising_in_training", "--set", "local_steps=2"], "in forward"),  # in a process
        (["run", "--strategy", f"{__name__}:Broken", *TASK], "in _divide"),
        (["compare", "--strategies", f"{__name__}:Broken", "--seeds", "1", *TASK], "in _divide"),
    ],
)
def test_exception_in_custom_code_shows_its_traceback(
    command: list[str], frame: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda **_: InProcessEngine())
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert main([*command, *QUICK, "--out", str(tmp_path / "out")]) in (2, 3)
    shown = capsys.readouterr().err
    assert shown.count("Traceback") == 1
    assert frame in shown
    assert shown.splitlines()[-1].startswith("lesson: ")


def test_input_error_has_its_cause(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        lesson.run(task=f"{__name__}:broken_task", rounds=1, out=tmp_path / "out")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_traceback_is_sent_by_worker_processes(tmp_path: Path) -> None:
    line = execute_trial(tmp_path, Settings(dataset=f"{__name__}:broken_task", rounds=1), progress=None)
    assert "in _read" in line["traceback"]
