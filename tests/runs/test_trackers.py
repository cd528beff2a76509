"""Trackers: their calls, their failures, and what TensorBoard reads."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.resuming import StoppedError, stop_after
from helpers.runs import PARTS, content, settings
from helpers.tensorboard import expected_scalars, needs_tensorboard, read_scalars
from helpers.trackers import Failing, RecordingTracker
from lesson import compare
from lesson.cli import main
from lesson.core.errors import RunStoppedError, UnfitFleetError
from lesson.runs.execute import execute
from lesson.runs.tensorboard import TensorBoard
from lesson.runs.trackers import Line
from lesson.settings.settings import Settings


class SavingTracker(RecordingTracker):
    """Writes its calls to the run's folder at the end."""

    def begin(self, settings: Settings, folder: Path, earlier: Sequence[Line]) -> None:
        self.calls, self.folder = [], folder
        super().begin(settings, Path(folder.name), earlier)

    def end(self, summary: Line | None) -> None:
        super().end(summary)
        (self.folder / "calls.json").write_text(json.dumps(self.calls, default=str))


def test_tracker_receives_every_round_once(tmp_path: Path) -> None:
    tracker = RecordingTracker()
    for _ in range(2):  # a finished run is not reported again
        execute(settings(rounds=3), tmp_path / "run", trackers=[tracker], **PARTS)
        assert tracker.calls == [("lesson", tmp_path / "run", []), 1, 2, 3, 3]


def test_tracker_of_a_resumed_run_receives_the_saved_rounds(tmp_path: Path) -> None:
    """A checkpoint after every round. The line of round 3 is written, but the run stops before its checkpoint."""
    often, tracker = settings(rounds=5, checkpoint_every_s=1e-9), RecordingTracker()
    with pytest.raises(StoppedError):
        execute(often, tmp_path / "run", trackers=[tracker], progress=stop_after(3), **PARTS)
    assert tracker.calls == [("lesson", tmp_path / "run", []), 1, 2, 3, None]
    tracker.calls.clear()
    execute(often, tmp_path / "run", resume=True, trackers=[tracker], **PARTS)
    assert tracker.calls == [("lesson", tmp_path / "run", [1, 2]), 3, 4, 5, 5]


def test_runs_without_rounds(tmp_path: Path) -> None:
    tracker, rejected = RecordingTracker(), settings("fedcs").with_changes(deadline_s=1e-3, ensure_first_tier=False)
    with pytest.raises(UnfitFleetError):
        execute(rejected, tmp_path / "run", trackers=[tracker], **PARTS)
    assert tracker.calls == []
    execute(settings("fedavg", time_budget_s=1e-3), tmp_path / "run", trackers=[tracker], **PARTS)
    assert tracker.calls == [("fedavg", tmp_path / "run", []), 0]


def test_trackers_reach_the_processes_of_a_comparison(tmp_path: Path) -> None:
    parts = {"task": "helpers.small_tasks:tiny_task", "num_processes": 2, "trackers": [SavingTracker()]}
    compare(["lesson"], num_seeds=1, settings=settings(rounds=2), out=tmp_path, **parts)
    calls = json.loads((tmp_path / "lesson-seed0" / "calls.json").read_text())
    assert calls == [["lesson", "lesson-seed0", []], 1, 2, 2]


@needs_tensorboard
def test_tensorboard_shows_metrics_on_both_axes_and_settings(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

    seen = []

    def look(line: dict[str, Any]) -> None:
        if "accuracy" in line:
            seen.append(read_scalars(tmp_path / "run")["accuracy/by round"][-1][0])

    execute(settings(), tmp_path / "run", trackers=[TensorBoard()], progress=look, **PARTS)
    assert seen == [5, 10, 15, 20, 25, 30], "evaluations can be read while the run is in progress"
    shown = read_scalars(tmp_path / "run")
    assert shown == expected_scalars(tmp_path / "run")
    assert [step for step, _ in shown["accuracy/by simulated time"]] == [100, 200, 300, 400, 500, 600]
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert 'name = "lesson"' in text
    start = events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
    chosen = parse_session_start_info_plugin_data(start).hparams
    assert chosen["fleet.num_clients"].number_value == 6
    assert chosen["fleet.cpu_hz"].string_value == "[800000000.0, 3000000000.0]"
    execute(settings(), tmp_path / "plain", **PARTS)
    assert content(tmp_path / "run") == content(tmp_path / "plain"), "a tracker changes no result"


@needs_tensorboard
def test_tensorboard_shows_no_duplicates_after_a_resume(tmp_path: Path) -> None:
    """A viewer watches before and after."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, often = tmp_path / "run", settings(checkpoint_every_s=1e-9)
    with pytest.raises(StoppedError):
        execute(often, run, trackers=[TensorBoard()], progress=stop_after(7), **PARTS)
    with pytest.raises(StoppedError):
        execute(settings(), run, resume=True, trackers=[TensorBoard()], progress=stop_after(17), **PARTS)
    viewer = EventAccumulator(str(run / "tensorboard"), {"scalars": 0}).Reload()
    assert [event.step for event in viewer.Scalars("accuracy/by round")] == [5, 10, 15]
    execute(settings(), run, resume=True, trackers=[TensorBoard()], **PARTS)
    assert read_scalars(run) == expected_scalars(run)
    watched = [event.step for event in viewer.Reload().Scalars("accuracy/by simulated time")]
    assert watched == [100, 200, 300, 400, 500, 600]


FLAGS = ["--rounds", "2", "--set", "num_clients=5", "--set", "split=iid", "--set", "batch_size=5", "--device", "cpu"]
FLAGS += ["--task", "helpers.small_tasks:tiny_task", "--set", "eval_every_s=20", "--out", "out"]


@needs_tensorboard
def test_trackers_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "from helpers.trackers import Failing\n\n\nclass Mine(Failing):\n    def __init__(self):\n"
    (tmp_path / "own_tracker.py").write_text(f"{code}        super().__init__('begin')\n\n\nclass Nothing:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    find_spec = importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find_spec(name))
        for name in ("tensorboard", "tensorbord", "nowhere:Mine", "own_tracker:Nothing"):
            assert main(["run", "--log", name, *FLAGS]) == 2
            output = capsys.readouterr()
            assert (name.lower() in output.err.lower(), output.err.count("\n")) == (True, 1)
    assert not (tmp_path / "out").exists()
    assert main(["run", *FLAGS, "--log", "own_tracker:Mine"]) == 3
    assert "own_tracker:Mine: OSError" in capsys.readouterr().err.splitlines()[-1]
    assert main(["run", *FLAGS, "--resume", "--log", "tensorboard"]) == 0
    assert len(read_scalars(tmp_path / "out")["accuracy/by round"]) == 2


@pytest.mark.usefixtures("round_by_round")
@pytest.mark.parametrize(("method", "calls"), [("begin", []), ("line", [1, 2, 3, 4, None])])
def test_run_can_resume_without_a_failed_tracker(method: str, calls: list[Any], tmp_path: Path) -> None:
    failing, other = Failing(method), RecordingTracker()
    with pytest.raises(RunStoppedError, match=r"Failing: OSError: .* No space left ") as stopped:
        execute(settings(checkpoint_every_s=1e-9), tmp_path / "run", trackers=[other, failing], **PARTS)
    assert isinstance(stopped.value.__cause__, OSError), "its traceback is shown"
    assert failing.calls[1:] == calls
    assert other.calls[1:] == (calls or [None])
    other.calls.clear()
    execute(settings(), tmp_path / "run", resume=True, trackers=[other], **PARTS)
    assert other.calls[0][2] == calls[:3], "the checkpoint of round 4 was not written"
    execute(settings(), tmp_path / "plain", **PARTS)
    assert content(tmp_path / "run") == content(tmp_path / "plain")


def test_all_trackers_end_if_one_fails_at_the_end(tmp_path: Path) -> None:
    first, last = RecordingTracker(), RecordingTracker()
    with pytest.raises(RunStoppedError, match="finished"):
        execute(settings(rounds=2), tmp_path / "run", trackers=[first, Failing("end"), last], **PARTS)
    assert first.calls[1:] == last.calls[1:] == [1, 2, 2]
    assert execute(settings(rounds=2), tmp_path / "run", **PARTS)["rounds"] == 2
