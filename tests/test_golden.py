"""Golden runs are unchanged, and the tool that compares them finds the smallest change."""

import json
import math
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import golden
import golden_cases
from lesson import Settings, draw_fleet
from lesson.core.arrays import FloatArray

RECORDED: dict[str, Any] = json.loads(golden.RECORDED.read_text())
ROUND = {"round": 2, "time_s": 20.0, "merged": [4, 1], "accuracy": 0.1}
CASES: golden.Group = {
    "adam": {"metrics.jsonl": [ROUND | {"round": 1}, ROUND], "model.safetensors": {"out.bias": {"norm": 0.5}}},
    "disconnections": {"metrics.jsonl": [dict(ROUND)]},
}
SCRIPT = """
import json, pathlib, sys
root = pathlib.Path(__file__).resolve().parent.parent
cases = {"adam": {"summary.json": {"accuracy": float((root / "accuracy.txt").read_text())}}}
results = {"source": str(root / "src/lesson/__init__.py"), "timing": {}, "training": cases}
pathlib.Path(sys.argv[2]).write_text(json.dumps(results))
"""


@pytest.fixture(scope="module")
def other_machine() -> str:
    """Why the training cases cannot be compared on this machine; empty if they can."""
    return golden.other_machine(RECORDED["machine"], golden.describe_machine())


@pytest.fixture(scope="module")
def values(other_machine: str) -> dict[str, golden.Group]:
    return {"timing": golden_cases.timing_cases()} if other_machine else golden.compute_in(golden.ROOT)


def test_timing_is_unchanged(values: dict[str, golden.Group]) -> None:
    assert not golden.differences_from_recorded(RECORDED["timing"], values["timing"])


def test_training_is_unchanged(values: dict[str, golden.Group], other_machine: str) -> None:
    if other_machine:
        pytest.skip(other_machine)
    assert not golden.differences_from_recorded(RECORDED["training"], values["training"])


@pytest.mark.parametrize("preset", ["released", "printed"])
@pytest.mark.parametrize("seed", [0, 1])
def test_fleets_follow_their_equations_to_the_bit(preset: str, seed: int) -> None:
    """Equations (3) to (6), evaluated in the same order as in the package."""
    settings = Settings(preset=preset)
    fleet = draw_fleet(settings, 200, seed=seed)
    people = fleet.population
    assert people is not None
    assert isinstance(settings.training.latency_samples, int)
    path_loss_db = settings.radio.path_loss_1km_db + settings.radio.path_loss_slope_db * np.log10(
        np.hypot(people.x_km, people.y_km)
    )
    received_w = settings.radio.power_w * np.power(10.0, -path_loss_db / 10)
    noise_w = float(np.power(10.0, (settings.radio.noise_dbm - 30) / 10))

    def upload_s(bands: int) -> FloatArray:
        rate_bps = bands * settings.radio.bandwidth_hz / float(np.log(2)) * np.log1p(received_w / (bands * noise_w))
        return settings.upload.model_bits / rate_bps

    cycles = math.log2(1 / 0.05) * people.cycles_per_sample * settings.training.latency_samples
    expected = {
        "compute_s": cycles / people.cpu_hz,
        "upload_s": upload_s(1),
        "shared_upload_s": upload_s(200),
        "latency_s": cycles / people.cpu_hz + upload_s(1),
        "compute_j": 1e-28 * people.cpu_hz**2 * cycles,
        "transmit_j": settings.radio.power_w * upload_s(1),
        "shared_transmit_j": settings.radio.power_w * upload_s(200),
    }
    for column, values in expected.items():
        np.testing.assert_array_equal(getattr(fleet, column), values, err_msg=column)


def changed(case: str, file: str, *path: Any, value: Any) -> golden.Group:
    """The cases with another value in one place."""
    cases = deepcopy(CASES)
    place: Any = cases[case][file]
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return cases


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (
            changed("adam", "metrics.jsonl", 1, "accuracy", value=math.nextafter(0.1, 1)),
            "adam: metrics.jsonl: round 2: accuracy: at abc 0.1, now 0.10000000000000002",
        ),
        (
            changed("adam", "model.safetensors", "out.bias", "norm", value=math.nextafter(0.5, 0)),
            "adam: model.safetensors: out.bias: norm: at abc 0.5, now 0.49999999999999994",
        ),
        (
            changed("disconnections", "metrics.jsonl", 0, "merged", value=[4]),
            "disconnections: metrics.jsonl: round 2: merged[1]: at abc 1, now (absent)",
        ),
        (
            changed("disconnections", "metrics.jsonl", 0, "time_s", value=20),
            "disconnections: metrics.jsonl: round 2: time_s: at abc 20.0, now 20",
        ),
    ],
)
def test_a_change_of_one_bit_is_found(now: golden.Group, line: str) -> None:
    assert golden.differences(CASES, now, "at abc") == [line]
    (recorded,) = golden.differences_from_recorded(golden.digests(CASES), now)
    assert recorded.startswith(":".join(line.split(":")[:2]) + ": recorded ")
    assert not golden.differences(CASES, deepcopy(CASES), "at abc")
    assert not golden.differences_from_recorded(golden.digests(CASES), deepcopy(CASES))


def test_a_case_that_fails_is_a_difference_on_either_side() -> None:
    failed = CASES | {"adam": {"error": "ValueError: no round"}}
    assert golden.differences(CASES, failed, "at abc") == ["adam: failed now: ValueError: no round"]
    assert golden.differences(failed, CASES, "at abc") == ["adam: failed at abc: ValueError: no round"]
    assert len(golden.differences(failed, failed, "at abc")) == 2
    recorded = golden.digests(CASES)
    assert golden.differences_from_recorded(recorded, failed) == ["adam: failed now: ValueError: no round"]


def test_a_case_must_exercise_its_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    case = golden_cases.Case
    cases = {
        "lesson": case(),
        "one thread": case(num_threads=1, like="lesson"),
        "without effect": case("guards.finite=false"),
        "not alike": case("server.optimizer=adam", like="lesson"),
        "nobody drops out": case("server.optimizer=yogi", shows="lost"),
        "not interrupted": case(resumed_after=9, like="lesson"),
    }
    monkeypatch.setattr(golden_cases, "TRAINING", cases)
    errors = {name: files.get("error", "") for name, files in golden_cases.training_cases().items()}
    assert errors == {
        "lesson": "",
        "one thread": "",
        "without effect": "the final model must not be that of 'lesson'",
        "not alike": "the final model must be that of 'lesson'",
        "nobody drops out": "lost must not be 0 in every round",
        "not interrupted": "ValueError: resumed_after must be at most the number of rounds, got 9",
    }


def test_cases_on_one_side_and_new_fields_are_reported_and_hide_no_difference() -> None:
    now = changed("adam", "metrics.jsonl", 0, "loss", value=1.0)
    now["adam"]["metrics.jsonl"][1]["time_s"] = 21.0
    now["yogi"] = now.pop("disconnections")
    assert golden.only_on_one_side(CASES, now, "at abc") == [
        "disconnections: only at abc",
        "yogi: only now",
        "field 'loss': only now, not compared",
    ]
    assert golden.differences(CASES, now, "at abc") == ["adam: metrics.jsonl: round 2: time_s: at abc 20.0, now 21.0"]


def test_another_kind_of_machine_is_named() -> None:
    here = golden.describe_machine()
    assert golden.other_machine(here, dict(here)) == ""
    assert "(torch is '1.0' there, '" in golden.other_machine(here | {"torch": "1.0"}, here)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a tiny golden script and one commit."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/golden.py").write_text(SCRIPT)
    (tmp_path / "accuracy.txt").write_text("0.5")
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    monkeypatch.setattr(golden, "ROOT", tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["golden.py", *arguments])
    return golden.main()


def test_a_commit_is_compared_with_the_working_tree(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--before", "HEAD") == 0
    assert capsys.readouterr().out == "golden: no differences, cases compared: 1\n"
    (repository / "accuracy.txt").write_text("0.75")
    assert run(monkeypatch, "--before", "HEAD") == 1
    assert capsys.readouterr().out == "adam: summary.json: accuracy: at HEAD 0.5, now 0.75\n"
    trees = subprocess.run(["git", "-C", repository, "worktree", "list"], capture_output=True, text=True, check=True)
    assert trees.stdout.count("\n") == 1, "the temporary worktree is removed"


def test_an_unknown_commit_is_one_line(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--before", "nowhere") == 2
    assert capsys.readouterr().err == "golden: unknown commit 'nowhere'\n"


def test_values_from_another_package_are_not_compared(repository: Path) -> None:
    script = repository / "tools/golden.py"
    script.write_text(script.read_text().replace('str(root / "src/lesson/__init__.py")', '"/elsewhere/lesson"'))
    with pytest.raises(golden.GoldenError, match="but came from /elsewhere/lesson"):
        golden.compute_in(repository)
