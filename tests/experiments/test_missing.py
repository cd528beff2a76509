"""run_missing: what is executed, what is skipped, and what the folder contains afterwards. No run is trained here."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.engines import FakeEngine
from helpers.run_folders import begin_run, load_as_study, make_run, write_run
from helpers.tuned import small
from lesson import InputError, Study, load
from lesson.core.locks import LOCK
from lesson.experiments.engines.trial import Hear, Line
from lesson.experiments.folder import MARKER, StudyFolder, StudyPlan
from lesson.experiments.grid import load_grid, make_grid
from lesson.experiments.missing import run_missing
from lesson.experiments.tuning.tune import plan_tuning, tune
from lesson.settings.settings import Settings

NAMES = ["lesson-seed0", "fedavg-seed0", "lesson-seed1", "fedavg-seed1"]
BROKEN: Line = {"error": "it broke", "kind": "RunStoppedError"}
WRONG: Line = {"error": "no such data", "kind": "InputError"}
DIVERGED: Line = {"error": "no longer finite", "kind": "DivergedError"}
ARCHIVE = "runs.jsonl.gz"


def grid(num_seeds: int = 2, **sections: Any) -> StudyPlan:
    return make_grid({"run": {"time_budget_s": 600.0}} | sections, {"strategy.name": ["lesson", "fedavg"]}, num_seeds)


def archived(folder: Path) -> StudyPlan:
    """Return a plan with four runs that are archived: two values of β and two seeds."""
    return plan_tuning(small(folder), {}, ["lesson τ=10"])


def names(study: Study) -> list[str]:
    return [run.name for run in study.runs]


def test_runs_are_executed_by_seed_and_returned_in_order(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").touch()
    engine = FakeEngine()
    study = run_missing(grid(), tmp_path, engine)
    assert engine.asked == [NAMES]
    assert names(study) == ["lesson-seed0", "lesson-seed1", "fedavg-seed0", "fedavg-seed1"]
    assert study.failures == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".DS_Store", *sorted([*NAMES, MARKER])]


def test_finished_runs_are_skipped(tmp_path: Path) -> None:
    """One of them was killed before its checkpoint was deleted."""
    run_missing(grid(1), tmp_path, FakeEngine())
    checkpoint = tmp_path / "lesson-seed0" / "checkpoint.safetensors"
    checkpoint.touch()
    reported: list[tuple[str, Line]] = []
    again = FakeEngine()
    run_missing(grid(2), tmp_path, again, report=lambda name, line: reported.append((name, line)))
    assert again.asked == [NAMES[2:]]
    assert {name for name, line in reported if line == {"done": True}} == set(NAMES[:2])
    assert {name for name, line in reported if "limits" in line} == set(NAMES[2:])
    assert not checkpoint.exists()
    nothing = FakeEngine()
    assert len(run_missing(grid(2), tmp_path, nothing).runs) == 4
    assert nothing.asked == []


def test_interrupted_run_is_resumed_unless_resume_is_false(tmp_path: Path) -> None:
    design, engine = grid(1), FakeEngine()
    run_missing(design, tmp_path, FakeEngine(at_most=1))
    begin_run(tmp_path / "fedavg-seed0", design.runs["fedavg-seed0"])
    with pytest.raises(InputError, match="fedavg-seed0 holds an unfinished run"):
        run_missing(design, tmp_path, engine, resume=False)
    assert engine.asked == []
    assert len(run_missing(design, tmp_path, engine).runs) == 2
    assert engine.asked == [["fedavg-seed0"]]
    assert len(run_missing(design, tmp_path, engine, resume=False).runs) == 2


def test_failures_are_recorded_and_retried(tmp_path: Path) -> None:
    errors = {NAMES[0]: BROKEN, NAMES[2]: WRONG, NAMES[3]: DIVERGED}
    study = run_missing(grid(), tmp_path, FakeEngine(errors))
    said = {NAMES[0]: "it broke", NAMES[2]: "no such data", NAMES[3]: "no longer finite"}
    assert (names(study), study.failures, load_as_study(tmp_path).failures) == ([NAMES[1]], said, said)
    again = FakeEngine({NAMES[0]: BROKEN})
    study = run_missing(grid(), tmp_path, again)
    assert again.asked == [[NAMES[0], *NAMES[2:]]]
    assert (len(study.runs), study.failures) == (3, {NAMES[0]: "it broke"})
    assert run_missing(grid(), tmp_path, FakeEngine()).failures == {}
    assert load_as_study(tmp_path).failures == {}


def test_invalid_input_stops_all_runs_on_request(tmp_path: Path) -> None:
    """Other failures do not: they concern one run."""
    engine = FakeEngine({NAMES[0]: BROKEN, NAMES[2]: WRONG})
    with pytest.raises(InputError, match=r"^lesson-seed1: no such data$"):
        run_missing(grid(), tmp_path, engine, on_error="stop")
    assert (names(load_as_study(tmp_path)), load_as_study(tmp_path).failures[NAMES[0]]) == ([NAMES[1]], "it broke")
    assert len(run_missing(grid(), tmp_path, FakeEngine(), on_error="stop").runs) == 4


def test_diverged_run_is_a_result_of_an_archived_design(tmp_path: Path) -> None:
    """It is not executed again, whether its folder is kept or not."""
    design, out = archived(tmp_path), tmp_path / "out"
    first = next(iter(design.runs))
    study = run_missing(design, out, FakeEngine({first: DIVERGED}))
    assert (sum(bool(run.diverged) for run in study.runs), study.failures) == (1, {})
    again = FakeEngine()
    for _ in range(2):
        assert load_as_study(out).failures == {}
        run = next(run for run in run_missing(design, out, again).runs if run.name == first)
        assert (run.diverged, run.summary["accuracy"], run.summary["rounds"]) == ("no longer finite", 0.1, 0)
        shutil.rmtree(out / first, ignore_errors=True)
    assert again.asked == []


def test_diverged_run_is_not_reused_after_its_input_has_changed(tmp_path: Path) -> None:
    (file := tmp_path / "lab.csv").write_text("client,latency_s\n0,12\n1,25\n")
    plan = replace(grid(1, fleet={"latencies": str(file)}), archived=True)
    first, out = next(iter(plan.runs)), tmp_path / "out"
    assert run_missing(plan, out, FakeEngine({first: DIVERGED})).runs[0].diverged
    with (out / first / "config.toml").open("a") as config:
        config.write(f'[versions]\n[inputs]\n"{file}" = "digest of another version"\n')
    with pytest.raises(InputError, match=rf"holds {first} with another version of .*lab.csv"):
        run_missing(plan, out, FakeEngine())


def test_runs_with_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    run_missing(grid(1), tmp_path, FakeEngine())
    longer = grid(1, run={"time_budget_s": 700.0})
    for _ in range(2):
        with pytest.raises(InputError, match=r"time_budget_s = 600.0 there, 700.0 here"):
            run_missing(longer, tmp_path, FakeEngine())
        (tmp_path / "lesson-seed0" / "summary.json").unlink(missing_ok=True)


class KilledAfter(FakeEngine):
    """Copies the study's folder within its second run: what a kill at this moment would leave."""

    def __init__(self, copy: Path) -> None:
        super().__init__()
        self.copy = copy

    def execute(self, path: Path, settings: Settings, hear: Hear) -> None:
        if path.name == self.asked[0][1]:
            begin_run(path, settings)
            shutil.copytree(path.parent, self.copy)
        super().execute(path, settings, hear)


@pytest.mark.parametrize("is_archived", [False, True])
def test_killed_study_is_completed_by_the_next_call(is_archived: bool, tmp_path: Path) -> None:
    design = archived(tmp_path) if is_archived else grid()
    undisturbed = run_missing(design, tmp_path / "whole", killed := KilledAfter(tmp_path / "killed"))
    assert (tmp_path / "killed" / LOCK).exists()
    assert names(load_as_study(tmp_path / "killed")) == killed.asked[0][:1]
    engine = FakeEngine()
    study = run_missing(design, tmp_path / "killed", engine)
    assert engine.asked == [killed.asked[0][1:]]
    assert study.table().equals(undisturbed.table())
    if is_archived:
        assert (tmp_path / "killed" / ARCHIVE).read_bytes() == (tmp_path / "whole" / ARCHIVE).read_bytes()


def test_exception_in_report_is_raised_and_is_not_a_failure(tmp_path: Path) -> None:
    """Runs that were done before it are kept."""

    def report(name: str, line: Line) -> None:
        if name == NAMES[1] and "done" in line:
            raise InputError("mine")

    with pytest.raises(InputError, match="mine"):
        run_missing(grid(), tmp_path, FakeEngine(), report=report)
    assert (sorted(names(load_as_study(tmp_path))), load_as_study(tmp_path).failures) == (sorted(NAMES[:2]), {})


def test_engine_without_time_left_is_not_called_again(tmp_path: Path) -> None:
    engine = FakeEngine(at_most=1)
    study = run_missing(grid(), tmp_path, engine)
    assert (engine.asked, names(study), study.failures) == ([NAMES], [NAMES[0]], {})


def test_tuning_adds_final_runs_once_it_is_complete(tmp_path: Path) -> None:
    """Entries with one point need no tuning. FedAvg, one of whose tuning runs fails, gets no final runs yet."""
    tuning, engine, only = small(tmp_path), FakeEngine(), ["fedavg", "deadlines"]
    failing = next(name for name in plan_tuning(tuning, {}).runs if name.startswith("fedavg") and "beta=0.1" in name)
    study = tune(tuning, tmp_path / "out", first := FakeEngine({failing: BROKEN}), only=only)
    asked, finals = first.asked
    assert sum(name.endswith("seed100") for name in asked) == 2 * 4
    assert len(asked) == 2 * 4 + 2 * 2 * 2  # β × points, and β × deadlines × seeds
    assert len(finals) == 2
    assert all(name.startswith("fedavg-mnist-fraction") for name in finals), "not FedAvg at the other β"
    assert study.failures == {failing: "it broke"}
    study = tune(tuning, tmp_path / "out", engine, only=only)
    assert [len(names) for names in engine.asked] == [1, 2]
    assert len(study.runs) == 2 * 3 * 2


def test_provenance_has_the_commands_that_executed_runs(tmp_path: Path) -> None:
    """Not those that had nothing to do; the file can be given to a sweep again."""
    run_missing(grid(1), tmp_path, FakeEngine(), command="lesson compare --seeds 1")
    run_missing(grid(1), tmp_path, FakeEngine(), command="nothing to do")
    run_missing(grid(2), tmp_path, FakeEngine({NAMES[2]: BROKEN}), command="lesson compare")
    marker = StudyFolder(tmp_path).read()
    assert marker is not None
    assert [(made.command, made.runs) for made in marker.provenance] == [
        ("lesson compare --seeds 1", 2),
        ("lesson compare", 1),
    ]
    assert load_grid(tmp_path / MARKER) == grid(2)


def test_runs_of_another_grid_are_left_out(tmp_path: Path) -> None:
    """Even if they have the same values of what varies: their mean would be of different settings."""
    tables: dict[str, Any] = {"run": {"time_budget_s": 600.0}}
    run_missing(make_grid(tables, {"data.beta": [0.1, 1.0]}, 2), tmp_path, FakeEngine())
    for more in (tables, {"run": {"time_budget_s": 600.0, "seed": 10}, "data": {"beta": 0.5}}):
        study = run_missing(make_grid(more, {"training.learning_rate": [0.1, 0.5]}, 2), tmp_path, FakeEngine())
        assert len(study.runs) == 4
        assert names(load_as_study(tmp_path)) == names(study)


def test_folders_with_other_content_are_left_alone(tmp_path: Path) -> None:
    def refused(folder: Path, reason: str) -> None:
        before = sorted(folder.rglob("*"))
        with pytest.raises(InputError, match=rf"{reason}.*; choose another output folder$"):
            run_missing(grid(), folder, engine)
        assert sorted(folder.rglob("*")) == before

    engine = FakeEngine()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    refused(tmp_path / "mine", "not empty")
    refused(tmp_path / "mine" / "thesis.tex", "is a file")
    make_run(tmp_path / "run")
    refused(tmp_path / "run", "single run")
    run_missing(make_grid({}, {"data.beta": [1.0]}), tmp_path / "sweep", FakeEngine())
    refused(tmp_path / "sweep", "holds a sweep")
    assert engine.asked == []


def test_invalid_input_leaves_no_new_folder(tmp_path: Path) -> None:
    class Refusing(FakeEngine):
        def run(self, *_: object) -> None:
            raise InputError("no such data")

    with pytest.raises(InputError, match="no such data"):
        run_missing(grid(1), tmp_path / "new", Refusing())
    assert not (tmp_path / "new").exists()


def test_two_processes_cannot_execute_one_study(tmp_path: Path) -> None:
    class Twice(FakeEngine):
        def run(self, *_: object) -> None:
            with pytest.raises(InputError, match="another process"):
                run_missing(grid(), tmp_path, FakeEngine())

    run_missing(grid(), tmp_path, Twice())


@pytest.mark.parametrize("text", ["[", "", '[study]\nformat = 9\nkind = "comparison"\n'])
def test_damaged_study_is_reported_before_anything_is_run(text: str, tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text(text)
    write_run(tmp_path / "lesson-seed0", grid(1).runs["lesson-seed0"])
    engine = FakeEngine()
    with pytest.raises(InputError, match=r"study\.toml"):
        run_missing(grid(), tmp_path, engine)
    assert engine.asked == []
    with pytest.raises(InputError, match=r"study\.toml"):
        load(tmp_path)


def test_runs_without_results_are_failures(tmp_path: Path) -> None:
    """As on a cluster node whose storage is not shared."""

    class Nowhere(FakeEngine):
        def execute(self, path: Path, settings: Settings, hear: Hear) -> None:
            hear(path, {"done": True, "accuracy": 0.5, "time_s": 600.0})

    study = run_missing(grid(1), tmp_path / "out", Nowhere())
    assert (study.runs, study.failures.keys()) == ([], set(NAMES[:2]))
