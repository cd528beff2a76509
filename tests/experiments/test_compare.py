"""The commands `lesson run` and `lesson compare`, as a user would call them."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import helpers.trackers
import lesson
from helpers.runs import settings
from helpers.small_tasks import tiny_task
from helpers.trackers import Told
from lesson import FedAvg, InputError, Study, load
from lesson.cli import main
from lesson.core.errors import DivergedError
from lesson.experiments.engines import InProcessEngine, LocalEngine
from lesson.experiments.engines.trial import execute_trial
from lesson.experiments.folder import MARKER
from lesson.experiments.grid import compare_strategies
from lesson.experiments.missing import run_missing
from lesson.settings.settings import Settings

pytestmark = pytest.mark.usefixtures("few_test_images")
SMALL = ["--time-budget", "200", "--set", "fleet.num_clients=8", "--set", "run.eval_every_s=50"]
SMALL += ["--set", "data.samples_per_client=100", "--set", "ensure_first_tier=true"]  # few clients: FedCS may have none
MANY_ROUNDS = ["--rounds", "100", "--set", "fleet.num_clients=5", "--set", "run.eval_every_s=1e6"]
MANY_ROUNDS += ["--set", "data.samples_per_client=100"]


def stay_in_process(patch: pytest.MonkeyPatch) -> None:
    """Execute the runs of a comparison in this process, which has already imported torch."""
    patch.setattr("lesson.experiments.engines.make_engine", lambda **_: InProcessEngine())


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study]:
    """Three strategies, two seeds, MNIST, as a user would do it."""
    out = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as patch:
        stay_in_process(patch)
        assert main(["compare", "--out", str(out), "--seeds", "2", *SMALL]) == 0
    loaded = load(out)
    assert isinstance(loaded, Study)
    return out, loaded


def test_a_comparison_leaves_its_runs_table_and_figures(study: tuple[Path, Study]) -> None:
    out, _ = study
    runs = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert runs == [f"{name}-seed{seed}" for name in ("fedavg", "fedcs", "lesson") for seed in (0, 1)]
    assert (out / "accuracy_round.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "accuracy_time.png").exists()
    table = json.loads((out / "table.json").read_text())
    assert set(table) == {"fedavg", "fedcs", "lesson"}
    assert (out / MARKER).read_text().count("[study]") == 1
    assert table["lesson"]["time_to_0.95"] is None


def test_frames(study: tuple[Path, Study]) -> None:
    _, loaded = study
    frame = loaded.to_frame()
    assert len(frame) == 6
    assert set(frame["strategy"]) == {"fedavg", "fedcs", "lesson"}
    curves = loaded.curves()
    assert list(curves.columns) == ["strategy", "seed", "round", "time_s", "accuracy", "loss", "uploads", "energy_j"]
    lesson = curves[(curves["strategy"] == "lesson") & (curves["seed"] == 0)]
    assert len(lesson) >= 3
    rounds = next(run for run in loaded.runs if run.name == "lesson-seed0").to_frame()
    assert lesson["uploads"].tolist() == [rounds["uploads"][: int(round)].sum() for round in lesson["round"]]
    assert lesson["energy_j"].iloc[-1] == pytest.approx(rounds["energy_j"][: int(lesson["round"].iloc[-1])].sum())
    means = frame.groupby("strategy")["accuracy_last10"].mean()
    assert loaded.table()["accuracy_last10"].to_dict() == pytest.approx(means.to_dict())
    assert isinstance(loaded.runs[0].to_frame(), pd.DataFrame)


def test_a_second_comparison_runs_nothing_again(study: tuple[Path, Study], capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = study
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/summary.json")}
    assert main(["compare", "--out", str(out), "--seeds", "2", *SMALL, "--resume"]) == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/summary.json")} == before
    assert "accuracy at the end (%)" in capsys.readouterr().out


def test_a_comparison_gives_what_a_run_alone_gives(study: tuple[Path, Study], tmp_path: Path) -> None:
    out, _ = study
    assert main(["run", "--out", str(tmp_path / "alone"), "--seed", "1", *SMALL]) == 0
    for name in ("metrics.jsonl", "model.safetensors", "config.toml"):
        assert (tmp_path / "alone" / name).read_bytes() == (out / "lesson-seed1" / name).read_bytes()


def test_a_folder_with_other_settings_is_rejected_by_name(
    study: tuple[Path, Study], capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = study
    other = [word.replace("num_clients=8", "num_clients=6") for word in SMALL]
    assert main(["compare", "--out", str(out), "--seeds", "2", *other, "--resume"]) == 2
    assert "other settings (fleet.num_clients = 8 there, 6 here)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["compare", "--strategies", "lesson,leson"], "unknown strategy 'leson'; did you mean 'lesson'?"),
        (["compare", "--strategies", "lesson,lesson"], "--strategies must be distinct names separated by commas"),
        (["compare", "--seeds", "0"], "--seeds must be from 1 to 1000, got 0"),
        (["run", "--dataset", "mnits"], "unknown dataset 'mnits'; did you mean 'mnist'?"),
        (["run", "--dataset", "cifar10", "--data-dir", "none"], "none/cifar-10-batches-bin/data_batch_1.bin does not"),
        (["compare", "--dataset", "mnits", "--seeds", "1"], "unknown dataset 'mnits'"),
        (["run", "--beta", "0"], "[data] beta must be > 0, got 0.0"),
        (["run", "--rounds", "0"], "[run] rounds must be >= 1, got 0"),
        (["run", "--device", "gpu"], "[run] device must be 'auto', 'cpu' or 'cuda', got 'gpu'"),
        (["run", "--strategy", "nowhere:Thing"], "strategy 'nowhere:Thing' cannot be loaded"),
        (["run", "--set", "strategy.lat=drop"], "[strategy] unknown setting 'lat' for lesson; did you mean 'late'?"),
        (["run", "--set", "strategy.late=wait"], "[strategy] late must be 'merge' or 'drop', got 'wait'"),
        (
            ["run", "--set", "run.trainer=fast"],
            "[run] trainer must be 'auto', 'reference', 'fused', 'batched' or 'ray', got 'fast'",
        ),
        (
            ["run", "--time-budget", "inf"],
            "[run] rounds or a finite time_budget_s must be given: otherwise the run would never end",
        ),
        (
            ["run", "--set", "run.eval_every_s=1e-310"],
            "[run] eval_every_s must be a number >= 0.001 or 'auto', got 1e-310",
        ),
        (["run", "--set", "run.client_scores_every_s=0.0"], "[run] client_scores_every_s must be >= 0.001, got 0.0"),
        (["run", "--set", "run.client_scores_every_s=nan"], "[run] client_scores_every_s must be >= 0.001, got nan"),
        (["run", "--seed", "1", "--seed", "2"], "--seed must be given once, got it twice"),
        (
            ["run", "--time-budget=1", "--time-budget", "2", "--time-budget=1"],
            "--time-budget must be given once, got",
        ),
        (["report", ".", "-o", "a.html", "--output", "b.html"], "--output must be given once, got it twice"),
        (["run", "--resume", "--resume"], "--resume must be given once, got it twice"),
        (
            ["run", "--set", "run.rounds=1", "--set", "run.rounds=2"],
            "run.rounds must be set only once, got it twice",
        ),
        (
            ["run", "--set", "strategy.deadline_s=5", "--deadline", "20"],
            "strategy.deadline_s must be set only once, got 5 with --set and 20.0 with --deadline",
        ),
        (
            ["plan", "--set", "fleet.num_clients=5", "--clients", "5"],
            "fleet.num_clients must be set only once",
        ),
        (
            ["run", "--set", "strategy.name=fedcs", "--strategy", "fedavg"],
            "strategy.name must be set only once, got 'fe",
        ),
        (
            ["compare", "--set", "strategy.name=fedcs"],
            "strategy.name must not be set in a comparison; use --strategies",
        ),
        (
            ["compare", "--set", "strategy.lat=drop"],
            "[strategy] unknown setting 'lat' for lesson and fedavg",
        ),
        (
            ["compare", "--set", "fedbuff.concurrency=5"],
            "fedbuff.concurrency has no effect: fedbuff is not one of the strategies",
        ),
        (
            ["compare", "--set", "lesson.concurrency=5"],
            "[strategy] unknown setting 'concurrency' for lesson; available",
        ),
        (
            ["compare", "--set", "fedavg.fraction=0.5", "--set", "fedavg.fraction=1"],
            "fedavg.fraction must be set only once",
        ),
        (
            ["compare", "--set", "lesson.late=drop", "--set", "strategy.late=drop"],
            "strategy.late has no effect: lesson.late is also set; remove one of them",
        ),
        (
            ["run", "--set", "fedbuff.concurrency=5"],
            "fedbuff.concurrency has no effect: the strategy is lesson",
        ),
        (["run", "--clients", "5"], "unknown option '--clients'"),
        (["data", "cifar11"], "unknown data set 'cifar11'; did you mean 'cifar10'?"),
        (["data", "shares"], "--figure must be given to draw shares"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(flags) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"lesson: {message}")
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "something half-written"


def test_a_run_that_diverges_ends_with_status_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--rounds", "5", "--set", "training.learning_rate=1e30", "--set", "training.lr_cap=inf"]
    never = ["--set", "run.eval_every_s=1e9"]
    assert main(["run", "--out", str(tmp_path / "run"), "--strategy", "fedavg", *flags, *never]) == 3
    assert "the model is no longer finite after round" in capsys.readouterr().err
    often = ["--set", "run.eval_every_s=1"]
    assert main(["run", "--out", str(tmp_path / "often"), "--strategy", "fedavg", *flags, *often]) == 3
    assert "the loss is no longer finite after round 1, with 50 clients that started from" in capsys.readouterr().err


def test_a_comparison_in_which_no_round_ends_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stay_in_process(monkeypatch)
    flags = ["--strategies", "lesson", "--time-budget", "1", "--seeds", "1"]
    assert main(["compare", "--out", str(tmp_path / "out"), *flags]) == 0
    output = capsys.readouterr()
    assert "note: no figures, because no round ended within the limits" in output.out
    assert output.err.startswith("lesson seed 0: ")
    assert output.err.endswith(" % after 0 s (1 of 1 runs)\n")


TINY = {"task": tiny_task()}


@pytest.fixture
def diverging(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg diverges in its third round, unless its fraction is 0.5."""
    merge = FedAvg.merge

    def diverge(self: FedAvg, view: Any, arrived: Any) -> Any:
        if view.round == 3 and self.fraction != 0.5:
            raise DivergedError("the model is no longer finite after round 3")
        return merge(self, view, arrived)

    monkeypatch.setattr(FedAvg, "merge", diverge)


@pytest.mark.usefixtures("diverging")
def test_a_run_that_diverges_does_not_end_the_comparison(tmp_path: Path) -> None:
    reasons = dict.fromkeys(["fedavg-seed0", "fedavg-seed1"], "the model is no longer finite after round 3")
    for _ in range(2):
        study = lesson.compare(
            ["lesson", "fedavg"],
            num_seeds=2,
            out=tmp_path / "out",
            settings=settings(rounds=5),
            num_processes=1,  # in which the strategy diverges
            **TINY,
        )
        assert study.failures == reasons
        assert [run.name for run in study.runs] == ["lesson-seed0", "lesson-seed1"]
    loaded = load(tmp_path / "out")
    assert isinstance(loaded, Study)
    assert loaded.failures == reasons


@pytest.mark.usefixtures("diverging")
def test_a_failed_run_is_shown_in_table_page_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, so that the strategy diverges there."""
    stay_in_process(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    flags = ["--strategies", "lesson,fedavg", "--seeds", "1", "--rounds", "4", "--set", "fleet.num_clients=5"]
    assert main(["compare", "--out", str(out), *flags, "--set", "run.eval_every_s=20"]) == 3
    told = capsys.readouterr()
    *lines, last = told.err.splitlines()
    failed = "the model is no longer finite after round 3"
    assert last == (
        f"lesson: 1 of 2 runs failed, first fedavg-seed0: {failed}; "
        f"repeat the command with --out {out} --resume to retry them"
    )
    assert [line.partition(":")[0] for line in lines] == ["lesson seed 0", "fedavg seed 0"]
    assert lines[0].endswith(" s (1 of 2 runs)")
    assert lines[1] == f"fedavg seed 0: failed: {failed} (2 of 2 runs)"
    assert next(line for line in told.out.splitlines() if "failed runs" in line).split()[2:] == ["0", "1"]
    table = json.loads((out / "table.json").read_text())
    assert table["fedavg"]["failures"] == {"fedavg-seed0": failed}
    assert (table["fedavg"]["seeds"], table["fedavg"]["accuracy_last10"]) == (0, None)
    assert "failures" not in table["lesson"]
    assert failed in (out / "report.html").read_text()


@pytest.mark.usefixtures("diverging")
def test_a_comparison_in_which_all_runs_fail_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stay_in_process(monkeypatch)
    flags = ["--strategies", "fedavg", "--seeds", "1", "--rounds", "4", "--set", "fleet.num_clients=5"]
    assert main(["compare", "--out", str(tmp_path / "out"), *flags]) == 3
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("lesson: 1 of 1 runs failed, first fedavg-seed0: the model is no longer")
    )
    assert json.loads((tmp_path / "out" / "table.json").read_text())["fedavg"]["seeds"] == 0


def test_one_strategys_option_on_the_command_line(tmp_path: Path) -> None:
    flags = ["--rounds", "2", "--set", "fleet.num_clients=20", "--strategy", "fedbuff"]
    assert main(["run", "--out", str(tmp_path / "run"), *flags, "--set", "fedbuff.concurrency=5"]) == 0
    assert load(tmp_path / "run").settings.strategy.options == {"concurrency": 5}


def test_a_tracker_that_another_process_cannot_load_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a notebook, whose classes other processes do not find."""
    kind = type("Nowhere", (Told,), {"__module__": "helpers.trackers"})
    monkeypatch.setattr(helpers.trackers, "Nowhere", kind, raising=False)
    with pytest.raises(InputError, match=r"^lesson-seed.: tracker helpers.trackers:Nowhere cannot be copied into"):
        lesson.compare(
            ["lesson"], num_seeds=1, out=tmp_path / "out", settings=settings(), num_processes=2, trackers=[kind()]
        )


@pytest.mark.slow
def test_a_killed_comparison_leaves_no_process_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    words = ["compare", "--out", str(out), "--strategies", "lesson", "--seeds", "1", *MANY_ROUNDS]
    process = subprocess.Popen([sys.executable, "-m", "lesson.cli", *words], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(out.glob("*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    while (left := _processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not list(out.glob("*/summary.json")), "too short to be killed"
    stay_in_process(monkeypatch)
    assert main([*words, "--resume"]) == 0
    assert main(["run", "--out", str(tmp_path / "alone"), *MANY_ROUNDS]) == 0
    assert (out / "lesson-seed0" / "metrics.jsonl").read_bytes() == (tmp_path / "alone" / "metrics.jsonl").read_bytes()


def _processes_of(folder: Path) -> list[str]:
    """Processes that hold a file in a folder open, as workers hold the lock of their run."""
    held = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(str(folder)):
                held.append(str(link))
    return held


def test_label_shares_are_drawn(tmp_path: Path) -> None:
    assert main(["data", "shares", "--figure", str(tmp_path / "shares.png")]) == 0
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")


def test_a_custom_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from lesson import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
    (tmp_path / "my_strategy.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--strategy", "my_strategy:Mine", "--rounds", "2", "--out", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["strategy"], summary["rounds"]) == ("my_strategy:Mine", 2)


def test_a_custom_strategy_that_fails_is_reported_in_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_strategy.py").write_text(
        "from lesson import FedAvg\n\n\nclass Broken(FedAvg):\n    def open_round(self, view, rng):\n"
        "        raise ZeroDivisionError('no\\nway')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--strategy", "broken_strategy:Broken", "--rounds", "2", "--out", "out"]) == 3
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == "lesson: broken_strategy:Broken: ZeroDivisionError: no way (broken_strategy.py, line 6)"


EXITS = """import sys

from lesson import FedAvg


class Exits(FedAvg):
    def open_round(self, view, rng):
        sys.exit({code})
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("0", "SystemExit: 0 (exits.py, line 8)"),
        ("", "SystemExit (exits.py, line 8)"),
        ("'no\\nway'", "SystemExit: no way (exits.py, line 8)"),
    ],
)
def test_a_custom_strategy_that_exits_is_reported_in_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str, told: str
) -> None:
    (tmp_path / "exits.py").write_text(EXITS.format(code=code))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "exits", raising=False)
    assert main(["run", "--strategy", "exits:Exits", "--rounds", "2", "--out", "out"]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == f"lesson: exits:Exits: {told}"
    settings = Settings(strategy={"name": "exits:Exits"}, run={"rounds": 2, "device": "cpu"})
    line = execute_trial(tmp_path / "trial", settings, progress=None, data_dir=None, num_threads=1)
    assert "SystemExit" in line.pop("traceback")
    assert line == {"error": told, "kind": "SystemExit"}


@pytest.mark.slow
def test_an_exception_of_the_listener_stops_all_processes(tmp_path: Path) -> None:
    def report(_: str, line: dict[str, Any]) -> None:
        if "round" in line:
            raise error

    error, design = InputError("mine"), compare_strategies(settings(rounds=2), ["fedavg", "lesson"], 1)
    with pytest.raises(InputError) as raised:
        run_missing(design, tmp_path, LocalEngine(2), report=report)
    assert raised.value is error


def test_a_module_that_exits_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exits_early.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--strategy", "exits_early:Exits", "--rounds", "2", "--out", "out"]) == 2
    assert (
        "strategy 'exits_early:Exits' cannot be loaded: SystemExit: 0 (exits_early.py, line 1)"
        in capsys.readouterr().err
    )
