"""The commands `lesson run` and `lesson compare`, as a user would call them."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.run_folders import load_as_study
from lesson import FedAvg, Study
from lesson.cli import main
from lesson.core.errors import DivergedError
from lesson.experiments.engines import InProcessEngine
from lesson.experiments.folder import MARKER

pytestmark = pytest.mark.usefixtures("few_test_images")
SMALL = ["--time-budget", "200", "--set", "fleet.num_clients=8", "--set", "run.eval_every_s=50"]
SMALL += ["--set", "data.samples_per_client=100", "--set", "ensure_first_tier=true"]  # few clients: FedCS may have none


def stay_in_process(patch: pytest.MonkeyPatch) -> None:
    """Execute the runs of a comparison in this process, which has already imported torch."""
    patch.setattr("lesson.api.make_engine", lambda **_: InProcessEngine())


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study]:
    """Three strategies, two seeds, MNIST."""
    out = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as patch:
        stay_in_process(patch)
        assert main(["compare", "--out", str(out), "--seeds", "2", *SMALL]) == 0
    return out, load_as_study(out)


def test_comparison_writes_runs_tables_and_report(study: tuple[Path, Study]) -> None:
    out, loaded = study
    runs = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert runs == [f"{name}-seed{seed}" for name in ("fedavg", "fedcs", "lesson") for seed in (0, 1)]
    assert {"table.csv", "table.json", "report.html", MARKER} <= {path.name for path in out.iterdir()}
    table = json.loads((out / "table.json").read_text())
    assert set(table) == {"fedavg", "fedcs", "lesson"}
    frame = loaded.to_frame()
    means = frame.groupby("strategy")["accuracy_last10"].mean()
    assert loaded.table()["accuracy_last10"].to_dict() == pytest.approx(means.to_dict())
    assert table["lesson"]["accuracy_last10"] == pytest.approx(means["lesson"])


def test_run_of_a_comparison_equals_a_single_run(study: tuple[Path, Study], tmp_path: Path) -> None:
    out, _ = study
    assert main(["run", "--out", str(tmp_path / "alone"), "--seed", "1", *SMALL]) == 0
    for name in ("metrics.jsonl", "model.safetensors", "config.toml"):
        assert (tmp_path / "alone" / name).read_bytes() == (out / "lesson-seed1" / name).read_bytes()


@pytest.mark.parametrize(("eval_every_s", "what"), [("1e9", "model"), ("1", "loss")])
def test_run_that_diverges_ends_with_status_3(
    eval_every_s: str, what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--rounds", "5", "--set", "training.learning_rate=1e30", "--set", "training.lr_cap=inf"]
    flags += ["--strategy", "fedavg", "--set", f"run.eval_every_s={eval_every_s}", "--set", "fleet.num_clients=5"]
    assert main(["run", "--out", str(tmp_path / "run"), *flags]) == 3
    assert f"the {what} is no longer finite after round" in capsys.readouterr().err


def test_comparison_in_which_no_round_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stay_in_process(monkeypatch)
    flags = ["--strategies", "lesson", "--time-budget", "1", "--seeds", "1"]
    assert main(["compare", "--out", str(tmp_path / "out"), *flags]) == 0
    assert load_as_study(tmp_path / "out").runs[0].summary["rounds"] == 0


@pytest.fixture
def diverging(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg diverges in its third round."""
    merge = FedAvg.merge

    def diverge(self: FedAvg, view: Any, arrived: Any) -> Any:
        if view.round == 3:
            raise DivergedError("the model is no longer finite after round 3")
        return merge(self, view, arrived)

    monkeypatch.setattr(FedAvg, "merge", diverge)


@pytest.mark.usefixtures("diverging")
def test_failed_run_is_shown_in_table_page_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stay_in_process(monkeypatch)
    out = tmp_path / "out"
    flags = ["--strategies", "lesson,fedavg", "--seeds", "1", "--rounds", "4", "--set", "fleet.num_clients=5"]
    assert main(["compare", "--out", str(out), *flags, "--set", "run.eval_every_s=20"]) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert "fedavg-seed0: the model is no longer finite" in last
    table = json.loads((out / "table.json").read_text())
    assert table["fedavg"]["failures"].keys() == {"fedavg-seed0"}
    assert (table["fedavg"]["seeds"], table["fedavg"].get("accuracy_last10")) == (0, None)
    study = load_as_study(out)
    assert (len(study.runs), study.failures.keys()) == (1, {"fedavg-seed0"})
    assert "failures" not in table["lesson"]
    assert "no longer finite after round 3" in (out / "report.html").read_text()


@pytest.mark.slow
def test_killed_comparison_leaves_no_process_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    long = ["--rounds", "100", "--set", "num_clients=5", "--set", "samples_per_client=100", "--set", "eval_every_s=1e6"]
    words = ["compare", "--out", str(out), "--strategies", "lesson", "--seeds", "1", *long]
    process = subprocess.Popen([sys.executable, "-m", "lesson.cli", *words], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(out.glob("*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    while (left := open_files_in(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not list(out.glob("*/summary.json")), "too short to be killed"
    stay_in_process(monkeypatch)
    assert main(words) == 0
    assert main(["run", "--out", str(tmp_path / "alone"), *long]) == 0
    assert (out / "lesson-seed0" / "metrics.jsonl").read_bytes() == (tmp_path / "alone" / "metrics.jsonl").read_bytes()


def open_files_in(folder: Path) -> list[str]:
    """Return the open files of all processes in a folder; workers hold the lock of their run."""
    held = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(str(folder)):
                held.append(str(link))
    return held


@pytest.mark.parametrize(
    ("code", "status", "place"),
    [
        ("raise SystemExit(0)", 2, "line 1"),
        ("from lesson import FedAvg\nclass Mine(FedAvg):\n    def open_round(self, *_):\n        exit(0)", 3, "line 4"),
    ],
)
def test_strategy_that_exits_is_reported(
    code: str,
    status: int,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / f"exits_{status}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    flags = ["--rounds", "2", "--set", "fleet.num_clients=5", "--out", "out"]
    assert main(["run", "--strategy", f"exits_{status}:Mine", *flags]) == status
    assert place in capsys.readouterr().err.splitlines()[-1]


def test_seed_without_a_client_to_train_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedCS has no client for seed 1: the fastest of its 20 takes 22.6 s."""
    stay_in_process(monkeypatch)
    out = tmp_path / "out"
    flags = ["--strategies", "fedcs", "--seeds", "2", "--rounds", "1", "--set", "fleet.num_clients=20"]
    assert main(["compare", "--out", str(out), *flags]) == 3
    study = load_as_study(out)
    assert ([run.name for run in study.runs], study.failures.keys()) == (["fedcs-seed0"], {"fedcs-seed1"})
