"""Files of a run that are well-formed and say what cannot be: one line that names the file, the line and the field."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.resuming import StoppedError
from helpers.run_folders import make_run
from helpers.runs import PARTS, settings
from lesson import InputError, load
from lesson.cli import main
from lesson.experiments.run import Run
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder
from lesson.runs.read_back import each_line, read_clients
from tests.stress.lies import lies_about

FILES = ("metrics.jsonl", "summary.json", "clients.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which rounds name whose work was merged."""
    path = tmp_path_factory.mktemp("true") / "run"
    execute(settings(rounds=12, eval_every_s=10.0, client_scores_every_s=50.0), path, **PARTS)
    return path


@pytest.mark.parametrize("name", FILES)
def test_invalid_values_are_reported_in_one_line(
    run: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through `lesson.load`, the figures and the page; values that cannot do harm are accepted."""
    rejected = 0
    for number, (what, content) in enumerate(list(lies_about(name, (run / name).read_text()))[::25]):
        folder = Path(shutil.copytree(run, tmp_path / str(number)))
        (folder / name).write_text(content)
        try:
            read = load(folder)
            assert isinstance(read, Run)
            read.to_frame()
        except InputError:
            pass
        status = main(["report", str(folder), "-o", str(tmp_path / "page.html")])
        told = capsys.readouterr().err
        assert status in (0, 2), what
        assert told.count("\n") == (status == 2), f"{what}: {told}"
        rejected += status == 2
        if status:
            assert str(folder / name) in told, what
    assert rejected > 3


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("metrics.jsonl", {"uploads": "x"}, r"metrics.jsonl line 3 is damaged \(uploads: .*, got 'x'\); remove"),
        ("metrics.jsonl", {"time_s": -1.0}, r"line 3 is damaged \(time_s: .*greater than or equal to 0, got -1.0\)"),
        ("metrics.jsonl", {"round": 2}, r"line 3 is damaged \(round must be 3, got 2\)"),
        ("metrics.jsonl", {"merged_staleness": []}, r"line 3 is damaged \(merged_staleness must have \d+ values"),
        ("metrics.jsonl", {"rejections": {"late": 5}}, r"line 3 is damaged \(rejections.late: .*, got 5\)"),
        ("summary.json", {"rejected_by": 5}, r"summary.json is damaged \(rejected_by: .*, got 5\); remove the folder"),
        ("summary.json", {"accuracy": 10**400}, r"summary.json is damaged \(accuracy: "),
        ("summary.json", {"time_to_s": {}}, r"summary.json is damaged \(time_to_s must have 0.5\)"),
        ("clients.json", {"clients": {}}, r"clients.json is damaged \(clients.number is missing\); remove it"),
        ("clients.json", {"promoted": {"client": 1}}, r"clients.json is damaged \(promoted.latency_s is missing\)"),
        ("clients.json", {"num_clients": 1}, r"clients.json is damaged \(clients.number must be distinct numbers"),
    ],
)
def test_the_field_is_named(run: Path, tmp_path: Path, name: str, change: dict[str, Any], said: str) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    if name == "metrics.jsonl":
        lines = (folder / name).read_text().splitlines()
        lines[2] = json.dumps(json.loads(lines[2]) | change)
        (folder / name).write_text("\n".join(lines) + "\n")
    else:
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | change))
    with pytest.raises(InputError, match=said):
        main_like_report(folder)


def main_like_report(folder: Path) -> None:
    RunFolder(folder).finished()
    RunFolder(folder).read_clients()
    list(each_line(folder / "metrics.jsonl"))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_values_that_are_not_numbers_are_rejected(run: Path, tmp_path: Path, constant: str) -> None:
    summary = json.loads((run / "summary.json").read_text())
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    (folder / "summary.json").write_text(json.dumps(summary | {"loss": 0.125}).replace("0.125", constant))
    with pytest.raises(InputError, match=r"summary.json is damaged"):
        load(folder)


def test_runs_of_older_versions_are_read(run: Path, tmp_path: Path) -> None:
    """They had fewer fields."""
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("rejected", "rejected_by", "excluded", "ended_early", "misses", "retiered", "lost"):
        summary.pop(name, None)
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    optional = ("rejected", "rejections", "excluded", "misses", "retiered", "lost", "note")
    merged = [name for name in lines[0] if name.startswith("merged")]
    for line in lines:
        for name in (*optional, *merged, "staleness", "client_accuracy", "client_loss", "global_loss"):
            line.pop(name, None)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    clients = json.loads((folder / "clients.json").read_text())
    for name in ("compute_j", "transmit_j", "num_samples"):
        clients["clients"].pop(name, None)
    (folder / "clients.json").write_text(json.dumps(clients))
    assert main(["report", str(folder)]) == 0
    (folder / "clients.json").unlink()
    assert main(["report", str(folder)]) == 0


def test_fields_of_newer_versions_are_kept(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"something_new": [1]}))
    read = load(folder)
    assert isinstance(read, Run)
    assert read.summary == summary | {"something_new": [1]}


def test_two_seeds_must_have_the_same_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        make_run(tmp_path / f"lesson-seed{seed}", run={"seed": seed})
    path = tmp_path / "lesson-seed1" / "clients.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"class_accuracy": [0.5]}))
    assert main(["report", str(tmp_path)]) == 2
    assert "class_accuracy must have 10 values like" in capsys.readouterr().err


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "metrics.jsonl").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="line 1 is damaged"):
        list(each_line(tmp_path / "metrics.jsonl"))


def test_clients_must_have_columns_of_one_length(run: Path, tmp_path: Path) -> None:
    kept = json.loads((run / "clients.json").read_text())
    for name in ("latency_s", "accuracy", "name"):
        wrong = copy.deepcopy(kept)
        wrong["clients"][name].pop()
        (tmp_path / "clients.json").write_text(json.dumps(wrong))
        with pytest.raises(InputError, match=f"{name} must have 6 values, as many as number, got 5"):
            read_clients(tmp_path / "clients.json")


def test_a_resumed_run_reports_a_changed_line(tmp_path: Path) -> None:
    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 5:
            raise StoppedError

    with pytest.raises(StoppedError):
        execute(settings(rounds=8, checkpoint_every_s=1e-9), tmp_path / "run", progress=stop, **PARTS)
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text(path.read_text().replace('"round": 2', '"round": 7'))
    with pytest.raises(InputError, match=r"metrics.jsonl line 2 is damaged \(round must be 2, got 7\)"):
        execute(settings(rounds=8), tmp_path / "run", resume=True, **PARTS)
    assert (tmp_path / "run" / "config.toml").exists()
