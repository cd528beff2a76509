"""Trackers: what they are told, in this process and in others, and what TensorBoard reads of it."""

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.resuming import StoppedError
from helpers.runs import PARTS, content, settings
from helpers.tensorboard import expected_scalars, needs_tensorboard, read_scalars
from helpers.trackers import Failing, Told
from lesson import InputError, compare
from lesson.cli import main
from lesson.core.errors import RunStoppedError
from lesson.learn.backend import WindowRule
from lesson.learn.cpu import CpuBackend
from lesson.runs.execute import execute
from lesson.runs.trackers import Line, TensorBoard, make_trackers, numbers
from lesson.settings.settings import Settings

pytestmark = pytest.mark.usefixtures("few_test_images")
ROOT = Path(__file__).parents[2]


class Noted(Told):
    """Writes down at the end, in the run's folder, what it was told."""

    def begin(self, settings: Settings, folder: Path, kept: Sequence[Line]) -> None:
        self.calls, self.folder = [], folder
        super().begin(settings, Path(folder.name), kept)

    def end(self, summary: Line | None) -> None:
        super().end(summary)
        (self.folder / "told.json").write_text(json.dumps(self.calls, default=str))


def test_a_tracker_receives_every_round_once(tmp_path: Path) -> None:
    told = Told()
    execute(settings(rounds=3), tmp_path / "run", trackers=[told], **PARTS)
    assert told.calls == [("lesson", tmp_path / "run", []), 1, 2, 3, 3]
    execute(settings(rounds=3), tmp_path / "run", trackers=[told], **PARTS)
    assert len(told.calls) == 5, "a run that has ended is not told again"


def test_a_resumed_run_passes_its_kept_lines_to_trackers(tmp_path: Path) -> None:
    """A checkpoint after every round. The third is written down, but the run breaks off before it is kept."""

    def break_off(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise StoppedError

    often, told = settings(rounds=5, checkpoint_every_s=1e-9), Told()
    with pytest.raises(StoppedError):
        execute(often, tmp_path / "run", trackers=[told], progress=break_off, **PARTS)
    assert told.calls == [("lesson", tmp_path / "run", []), 1, 2, 3, None]
    told.calls.clear()
    execute(often, tmp_path / "run", resume=True, trackers=[told], **PARTS)
    assert told.calls == [("lesson", tmp_path / "run", [1, 2]), 3, 4, 5, 5]


def test_a_run_rejected_in_its_first_round_is_not_tracked(tmp_path: Path) -> None:
    told = Told()
    nobody = Settings(strategy={"deadline_s": 1e-3}, run={"rounds": 3})
    fedcs = nobody.model_copy(update={"strategy": nobody.strategy.model_copy(update={"name": "fedcs"})})
    with pytest.raises(InputError):
        execute(fedcs, tmp_path / "run", trackers=[told], **PARTS)
    assert told.calls == []
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_round_begins_and_ends(tmp_path: Path) -> None:
    told = Told()
    execute(settings("fedavg", time_budget_s=1e-3), tmp_path / "run", trackers=[told], **PARTS)
    assert told.calls == [("fedavg", tmp_path / "run", []), 0]


def test_trackers_reach_the_processes_of_a_comparison(tmp_path: Path) -> None:
    chosen = Settings(fleet={"num_clients": 5}, run={"rounds": 2, "device": "cpu"})
    compare(["lesson"], num_seeds=1, settings=chosen, out=tmp_path, num_processes=2, trackers=[Noted()])
    told = json.loads((tmp_path / "lesson-seed0" / "told.json").read_text())
    assert told == [["lesson", "lesson-seed0", []], 1, 2, 2]


@needs_tensorboard
def test_tensorboard_has_the_metrics_on_both_axes_and_the_settings(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

    execute(settings(), tmp_path / "run", trackers=[TensorBoard()], **PARTS)
    shown = read_scalars(tmp_path / "run")
    assert shown == expected_scalars(tmp_path / "run")
    assert [step for step, _ in shown["accuracy/by round"]] == [5, 10, 15, 20, 25, 30]
    assert [step for step, _ in shown["accuracy/by simulated time"]] == [100, 200, 300, 400, 500, 600]
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert 'name = "lesson"' in text
    start = events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
    chosen = parse_session_start_info_plugin_data(start).hparams
    assert chosen["fleet.num_clients"].number_value == 6
    assert chosen["fleet.cpu_hz"].string_value == "[800000000.0, 3000000000.0]"
    assert chosen["strategy.ensure_first_tier"].string_value == "false"


@needs_tensorboard
def test_an_evaluation_is_logged_while_the_run_is_in_progress(tmp_path: Path) -> None:
    seen = []

    def look(line: dict[str, Any]) -> None:
        if "accuracy" in line:
            seen.append(read_scalars(tmp_path / "run")["accuracy/by round"][-1][0])

    execute(settings(), tmp_path / "run", trackers=[TensorBoard()], progress=look, **PARTS)
    assert seen == [5, 10, 15, 20, 25, 30]


@needs_tensorboard
def test_a_run_with_a_tracker_is_bit_identical(tmp_path: Path) -> None:
    execute(settings(), tmp_path / "plain", **PARTS)
    execute(settings(), tmp_path / "tracked", trackers=[TensorBoard()], **PARTS)
    assert content(tmp_path / "tracked") == content(tmp_path / "plain")


KILLED = """
import os
import signal
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from helpers.runs import PARTS, settings
from lesson.runs.execute import execute
from lesson.runs.trackers import TensorBoard

path, checkpoint_every_s, last = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])


def kill(line):
    if line["round"] == last:
        os.kill(os.getpid(), signal.SIGKILL)


chosen = settings(checkpoint_every_s=checkpoint_every_s)
execute(chosen, path, resume=True, progress=kill, trackers=[TensorBoard()], **PARTS)
"""


@needs_tensorboard
def test_nothing_shows_twice_after_a_kill(tmp_path: Path) -> None:
    """Killed after round 17, many rounds after the last checkpoint; a viewer watches before and after."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    here, script, run = Path(__file__).parents[1], tmp_path / "script.py", tmp_path / "run"
    script.write_text(KILLED.format(paths=[str(here)]))
    command = [sys.executable, str(script), str(run)]
    assert subprocess.run([*command, "1e-9", "5"]).returncode == -signal.SIGKILL
    assert subprocess.run([*command, "1e9", "17"]).returncode == -signal.SIGKILL
    viewer = EventAccumulator(str(run / "tensorboard"), {"scalars": 0}).Reload()
    assert [event.step for event in viewer.Scalars("accuracy/by round")] == [5, 10, 15]
    execute(settings(), run, resume=True, trackers=[TensorBoard()], **PARTS)
    execute(settings(), tmp_path / "whole", **PARTS)
    assert content(run) == content(tmp_path / "whole")
    assert read_scalars(run) == expected_scalars(run)
    watched = [event.step for event in viewer.Reload().Scalars("accuracy/by simulated time")]
    assert watched == [100, 200, 300, 400, 500, 600]


FLAGS = ["--rounds", "2", "--set", "fleet.num_clients=5", "--set", "run.eval_every_s=20", "--device", "cpu"]


@needs_tensorboard
@pytest.mark.parametrize(
    ("argv", "runs"),
    [
        (["run", *FLAGS], ["out"]),
        (
            ["compare", "--strategies", "lesson,fedavg", "--seeds", "1", *FLAGS],
            ["out/lesson-seed0", "out/fedavg-seed0"],
        ),
    ],
    ids=lambda value: value[0],
)
def test_log_tensorboard(
    argv: list[str],
    runs: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(1))
    monkeypatch.chdir(tmp_path)
    assert main([*argv, "--out", "out", "--log", "tensorboard"]) == 0, capsys.readouterr().err
    for run in runs:
        assert len(read_scalars(tmp_path / run)["accuracy/by round"]) == 2
        assert read_scalars(tmp_path / run) == expected_scalars(tmp_path / run)


@pytest.mark.parametrize("command", [["run"], ["compare"], ["sweep", str(ROOT / "examples" / "sweep.toml")]])
def test_an_unavailable_tracker_is_reported_before_training(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty_tracker.py").write_text("class Nothing:\n    pass\n")
    (tmp_path / "asking_tracker.py").write_text("from helpers.trackers import Failing\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name, message in (
        ("tensorboard", "TensorBoard is not installed; run pip install 'lesson-fl[tensorboard]'"),
        (
            "tensorbord",
            "unknown tracker 'tensorbord'; did you mean 'tensorboard'? Available: module:Class, tensorboard",
        ),
        (
            "nowhere:Mine",
            "tracker 'nowhere:Mine' cannot be loaded: No module named 'nowhere'; the name must be module:Class",
        ),
        ("empty_tracker:Nothing", "tracker 'empty_tracker:Nothing' must have the methods begin, line and end"),
        (
            "asking_tracker:Failing",
            "tracker 'asking_tracker:Failing' cannot be created: TypeError: Failing.__init__() missing 1 required "
            "positional argument: 'method'; its class is called without arguments",
        ),
    ):
        assert main([*command, "--log", name]) == 2
        output = capsys.readouterr()
        assert (output.err.startswith(f"lesson: {message}"), output.err.count("\n"), output.out) == (True, 1, "")
    assert not (tmp_path / "runs").exists()


def test_a_custom_tracker_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_tracker.py").write_text("from helpers.trackers import Told\n\n\nclass Mine(Told):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    (tracker,) = make_trackers(["own_tracker:Mine", "own_tracker:Mine"])
    assert type(tracker).__name__ == "Mine"


@pytest.mark.usefixtures("round_by_round")
@pytest.mark.parametrize(
    ("method", "last", "calls"), [("begin", 1, []), ("line", 4, [1, 2, 3, 4, None])], ids=["begin", "line"]
)
def test_a_tracker_that_fails_stops_a_run_that_can_resume_without_it(
    method: str, last: int, calls: list[Any], tmp_path: Path
) -> None:
    """The round it failed in is kept, though checkpoints are far apart; the other one is told as if interrupted."""
    failing, told = Failing(method), Told()
    message = (
        r"^tracker helpers.trackers:Failing: OSError: \[Errno 28\] No space left \(trackers.py, line \d+\); "
        "resume the run without trackers to continue$"
    )
    with pytest.raises(RunStoppedError, match=message):
        execute(settings(), tmp_path / "run", trackers=[failing, told], **PARTS)
    assert failing.calls[1:] == calls
    assert told.calls[1:] == [*range(1, last + 1), None]
    told.calls.clear()
    execute(settings(), tmp_path / "run", resume=True, trackers=[told], **PARTS)
    assert told.calls[0][2] == list(range(1, last + 1))
    execute(settings(), tmp_path / "plain", **PARTS)
    assert content(tmp_path / "run") == content(tmp_path / "plain")


def test_a_tracker_that_fails_gets_no_more_lines_of_its_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 30 rounds are one window, so the run has ended when the tracker fails; the other one gets all lines."""
    monkeypatch.setattr(CpuBackend, "window", WindowRule(10**6))
    failing, told = Failing("line"), Told()
    with pytest.raises(RunStoppedError, match="the run has finished nevertheless"):
        execute(settings(), tmp_path / "run", trackers=[failing, told], **PARTS)
    assert [call for call in failing.calls[1:] if isinstance(call, int)] == [1, 2, 3, 4, 30]
    assert told.calls[1:] == [*range(1, 31), 30]


def test_all_trackers_end_if_one_of_them_fails_then_and_so_does_the_run(tmp_path: Path) -> None:
    first, last = Told(), Told()
    with pytest.raises(RunStoppedError, match=r"Failing: OSError: .*; the run has finished nevertheless"):
        execute(settings(rounds=2), tmp_path / "run", trackers=[first, Failing("end"), last], **PARTS)
    assert first.calls[1:] == last.calls[1:] == [1, 2, 2]
    assert execute(settings(rounds=2), tmp_path / "run", **PARTS)["rounds"] == 2


def test_a_failing_tracker_is_one_line_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "from helpers.trackers import Failing\n\n\nclass Mine(Failing):\n    def __init__(self):\n"
    (tmp_path / "failing_tracker.py").write_text(f"{code}        super().__init__('begin')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["run", *FLAGS, "--out", "out", "--log", "failing_tracker:Mine"]) == 3
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("lesson: tracker failing_tracker:Mine: OSError: [Errno 28] No space left (")
    assert main(["run", *FLAGS, "--out", "out", "--resume"]) == 0


def test_numbers_are_what_can_be_drawn() -> None:
    assert numbers({"round": 3, "energy_j": None, "note": "late", "client_loss": [1.0], "loss": 0.5}) == {
        "round": 3,
        "loss": 0.5,
    }
