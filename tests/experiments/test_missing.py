"""run_missing: what is executed, what is skipped, and what a folder holds afterwards. No run is trained here."""

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.engines import FakeEngine
from helpers.run_folders import begin_run, make_run, write_run
from helpers.tuned import small
from lesson import InputError, load
from lesson.core.locks import LOCK
from lesson.experiments.engines.trial import Hear, Line
from lesson.experiments.folder import MARKER, StudyFolder
from lesson.experiments.grid import Grid, load_grid, make_grid
from lesson.experiments.missing import run_missing
from lesson.experiments.study import Study
from lesson.settings.settings import Settings

NAMES = ["lesson-seed0", "fedavg-seed0", "lesson-seed1", "fedavg-seed1"]
BROKEN: Line = {"error": "it broke", "kind": "RunStoppedError"}
WRONG: Line = {"error": "no such data", "kind": "InputError"}
DIVERGED: Line = {"error": "no longer finite", "kind": "DivergedError"}


def grid(num_seeds: int = 2, **sections: Any) -> Grid:
    return make_grid({"run": {"time_budget_s": 600.0}} | sections, {"strategy.name": ["lesson", "fedavg"]}, num_seeds)


class Archiving(Grid):
    """A grid whose runs are archived, as those of a tuned comparison or of the paper."""

    archived = True  # type: ignore[misc]


def archiving(num_seeds: int = 2) -> Archiving:
    return Archiving(**vars(grid(num_seeds)))


def names(study: Study) -> list[str]:
    return [run.name for run in study.runs]


def test_all_runs_are_executed_in_the_order_of_their_seeds_and_returned_in_that_of_the_design(tmp_path: Path) -> None:
    engine = FakeEngine()
    study = run_missing(grid(), tmp_path / "out", engine)
    assert engine.asked == [NAMES]
    assert names(study) == ["lesson-seed0", "lesson-seed1", "fedavg-seed0", "fedavg-seed1"]
    assert study.failures == {}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*NAMES, MARKER])


def test_finished_runs_are_skipped(tmp_path: Path) -> None:
    """One of them was killed before its checkpoint was deleted."""
    run_missing(grid(1), tmp_path / "out", FakeEngine())
    checkpoint = tmp_path / "out" / "lesson-seed0" / "checkpoint.safetensors"
    checkpoint.touch()
    told: list[tuple[str, Line]] = []
    again = FakeEngine()
    run_missing(grid(2), tmp_path / "out", again, report=lambda name, line: told.append((name, line)))
    assert again.asked == [NAMES[2:]]
    assert {name for name, line in told if line == {"done": True}} == set(NAMES[:2]), "not counted as done"
    assert {name for name, line in told if "limits" in line} == set(NAMES[2:])
    assert not checkpoint.exists()
    nothing = FakeEngine()
    assert len(run_missing(grid(2), tmp_path / "out", nothing).runs) == 4
    assert nothing.asked == []


def test_an_interrupted_run_is_resumed_unless_resume_is_false(tmp_path: Path) -> None:
    design, engine = grid(1), FakeEngine()
    run_missing(grid(1), tmp_path, FakeEngine(at_most=1))
    begin_run(tmp_path / "fedavg-seed0", design.trials["fedavg-seed0"])
    with pytest.raises(InputError, match=r"fedavg-seed0 holds an unfinished run; resume it"):
        run_missing(design, tmp_path, engine, resume=False)
    assert engine.asked == []
    assert len(run_missing(design, tmp_path, engine).runs) == 2
    assert engine.asked == [["fedavg-seed0"]]
    assert len(run_missing(design, tmp_path, engine, resume=False).runs) == 2, "finished runs are no reason"


def test_failures_do_not_stop_other_runs_are_recorded_and_retried(tmp_path: Path) -> None:
    errors = {NAMES[0]: BROKEN, NAMES[2]: WRONG, NAMES[3]: DIVERGED}
    study = run_missing(grid(), tmp_path, FakeEngine(errors))
    said = {NAMES[0]: "it broke", NAMES[2]: "no such data", NAMES[3]: "no longer finite"}
    assert (names(study), study.failures) == ([NAMES[1]], said)
    marker = StudyFolder(tmp_path).read()
    assert marker is not None
    assert marker.failures == said
    assert load(tmp_path).failures == said  # type: ignore[union-attr]
    again = FakeEngine({NAMES[0]: BROKEN})
    study = run_missing(grid(), tmp_path, again)
    assert again.asked == [[NAMES[0], *NAMES[2:]]]
    assert (len(study.runs), study.failures) == (3, {NAMES[0]: "it broke"})
    assert run_missing(grid(), tmp_path, FakeEngine()).failures == {}
    assert load(tmp_path).failures == {}  # type: ignore[union-attr]


def test_invalid_input_stops_all_if_asked_for(tmp_path: Path) -> None:
    """Other failures do not: they concern one run."""
    engine = FakeEngine({NAMES[0]: BROKEN, NAMES[2]: WRONG})
    with pytest.raises(InputError, match=r"^lesson-seed1: no such data$"):
        run_missing(grid(), tmp_path, engine, on_error="stop")
    marker = StudyFolder(tmp_path).read()
    assert marker is not None
    assert marker.failures == {NAMES[0]: "it broke"}
    assert [made.runs for made in marker.provenance] == [1]
    assert len(run_missing(grid(), tmp_path, FakeEngine(), on_error="stop").runs) == 4


def test_a_run_that_diverged_is_a_result_of_an_archived_design(tmp_path: Path) -> None:
    """It is not executed again, whether its folder is kept or not."""
    study = run_missing(archiving(1), tmp_path, FakeEngine({NAMES[1]: DIVERGED}))
    assert ([run.diverged for run in study.runs], study.failures) == (["", "no longer finite"], {})
    summary = study.runs[1].summary
    assert (summary["accuracy"], summary["rounds"], summary["time_to_s"]["0.5"]) == (0.1, 0, None)
    again = FakeEngine()
    for _ in range(2):
        assert load(tmp_path).failures == {}  # type: ignore[union-attr]
        study = run_missing(archiving(1), tmp_path, again)
        assert (again.asked, study.runs[1].diverged) == ([], "no longer finite")
        shutil.rmtree(tmp_path / NAMES[1], ignore_errors=True)


def test_archived_runs_need_no_folders(tmp_path: Path) -> None:
    whole = run_missing(archiving(), tmp_path, FakeEngine())
    kept = (tmp_path / "runs.jsonl.gz").read_bytes()
    assert [json.loads(line)["name"] for line in gzip.decompress(kept).splitlines()] == sorted(NAMES)
    for name in NAMES:
        shutil.rmtree(tmp_path / name)
    engine = FakeEngine()
    study = run_missing(archiving(), tmp_path, engine)
    assert engine.asked == []
    assert [run.path for run in study.runs] == [None] * 4
    assert study.table().equals(whole.table())
    assert (tmp_path / "runs.jsonl.gz").read_bytes() == kept


def test_finished_folders_are_archived_although_nothing_is_executed(tmp_path: Path) -> None:
    """As after a kill between the end of the last run and the writing of the archive."""
    run_missing(archiving(1), tmp_path, FakeEngine())
    before = (tmp_path / "runs.jsonl.gz").read_bytes()
    run_missing(archiving(), tmp_path, FakeEngine())
    whole = (tmp_path / "runs.jsonl.gz").read_bytes()
    for content in (before, None):
        (tmp_path / "runs.jsonl.gz").unlink()
        if content is not None:
            (tmp_path / "runs.jsonl.gz").write_bytes(content)
        engine = FakeEngine()
        run_missing(archiving(), tmp_path, engine)
        assert engine.asked == []
        assert (tmp_path / "runs.jsonl.gz").read_bytes() == whole


def test_runs_with_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    run_missing(archiving(1), tmp_path, FakeEngine())
    longer = grid(1, run={"time_budget_s": 700.0})
    reason = r"\(run.time_budget_s = 600.0 there, 700.0 here\); choose another output folder"
    with pytest.raises(InputError, match=rf"holds lesson-seed0 with other settings {reason}"):
        run_missing(longer, tmp_path, FakeEngine())
    (tmp_path / "lesson-seed0" / "summary.json").unlink()
    (tmp_path / "runs.jsonl.gz").unlink()
    with pytest.raises(InputError, match=rf"lesson-seed0 holds a run with other settings {reason}"):
        run_missing(longer, tmp_path, FakeEngine())


class KilledAfter(FakeEngine):
    """Copies the study's folder within its second run: what a kill at this moment would leave."""

    def __init__(self, copy: Path) -> None:
        super().__init__()
        self.copy = copy

    def execute(self, path: Path, settings: Settings, hear: Hear) -> None:
        if path.name == NAMES[1]:
            begin_run(path, settings)
            shutil.copytree(path.parent, self.copy)
        super().execute(path, settings, hear)


@pytest.mark.parametrize("design", [grid(), archiving()], ids=["sweep", "archived"])
def test_a_killed_call_leaves_a_folder_that_the_next_one_completes(design: Grid, tmp_path: Path) -> None:
    undisturbed = run_missing(design, tmp_path / "whole", KilledAfter(tmp_path / "killed"))
    assert (tmp_path / "killed" / LOCK).exists(), "its lock is left"
    assert names(load(tmp_path / "killed")) == [NAMES[0]]  # type: ignore[arg-type]
    engine = FakeEngine()
    study = run_missing(design, tmp_path / "killed", engine)
    assert engine.asked == [NAMES[1:]]
    assert study.table().equals(undisturbed.table())
    if design.archived:
        assert (tmp_path / "killed/runs.jsonl.gz").read_bytes() == (tmp_path / "whole/runs.jsonl.gz").read_bytes()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("mine"), InputError("mine"), SystemExit(4)])
def test_an_exception_of_the_report_is_raised_and_is_no_failure(error: BaseException, tmp_path: Path) -> None:
    """Runs that were done before it are kept."""

    def report(name: str, line: Line) -> None:
        if name == NAMES[1] and "done" in line:
            raise error

    with pytest.raises(type(error)) as raised:
        run_missing(archiving(), tmp_path, FakeEngine(), report=report)
    assert raised.value is error
    study = load(tmp_path)
    assert isinstance(study, Study)
    assert (sorted(names(study)), study.failures) == (sorted(NAMES[:2]), {})


def test_an_engine_that_runs_out_of_time_is_not_called_again(tmp_path: Path) -> None:
    engine = FakeEngine(at_most=1)
    study = run_missing(grid(), tmp_path, engine)
    assert (engine.asked, names(study), study.failures) == ([NAMES], [NAMES[0]], {})
    never = FakeEngine(at_most=0)
    assert names(run_missing(grid(), tmp_path, never)) == [NAMES[0]]
    assert never.asked == [NAMES[1:]]


def test_tuning_adds_runs_once_it_is_complete(tmp_path: Path) -> None:
    """Entries with one point need no tuning. FedAvg, one of whose tuning runs fails, gets no final runs yet."""
    design, engine = small(tmp_path).select(["fedavg", "deadlines"]), FakeEngine()
    failing = next(name for name in design.runs({}) if name.startswith("fedavg") and "beta=0.1" in name)
    study = run_missing(design, tmp_path / "out", first := FakeEngine({failing: BROKEN}))
    tuning, finals = first.asked
    assert sum(name.endswith("seed100") for name in tuning) == 2 * 4
    assert len(tuning) == 2 * 4 + 2 * 2 * 2  # β × points, and β × deadlines × seeds
    assert len(finals) == 2
    assert all(name.startswith("fedavg-mnist-fraction") for name in finals), "not FedAvg at the other β"
    assert study.failures == {failing: "it broke"}
    study = run_missing(design, tmp_path / "out", engine)
    assert [len(asked) for asked in engine.asked] == [1, 2]
    assert len(study.runs) == 2 * 3 * 2
    assert not run_missing(design, tmp_path / "out", engine).failures
    assert len(engine.asked) == 2, "something is executed twice"


def test_time_may_be_up_after_tuning(tmp_path: Path) -> None:
    design, engine = small(tmp_path).select(["lesson"]), FakeEngine(at_most=4)
    assert run_missing(design, tmp_path / "out", engine).runs == []
    assert [len(asked) for asked in engine.asked] == [4, 4], "asked for more without time"
    study = run_missing(design, tmp_path / "out", FakeEngine())
    assert len(study.filter(entry="lesson").runs) == 4


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
    assert all(re.fullmatch(r"([0-9a-f]{40}\+?)?", made.commit) for made in marker.provenance)
    assert marker.versions.keys() == {"lesson", "python"}
    assert load_grid(tmp_path / MARKER) == grid(2)


def test_a_grid_may_grow_and_shrink(tmp_path: Path) -> None:
    """Runs that are not in the grid stay in the folder, and out of the study."""
    run_missing(grid(2), tmp_path, FakeEngine())
    more = make_grid({"run": {"time_budget_s": 600.0}}, {"strategy.name": ["fedcs", "fedavg"]})
    engine = FakeEngine()
    study = run_missing(more, tmp_path, engine)
    assert (engine.asked, names(study)) == ([["fedcs-seed0"]], ["fedcs-seed0", "fedavg-seed0"])
    assert names(load(tmp_path)) == names(study)  # type: ignore[arg-type]


def test_folders_of_something_else_are_left_alone(tmp_path: Path) -> None:
    def refused(folder: Path, reason: str) -> None:
        before = sorted(folder.rglob("*"))
        with pytest.raises(InputError, match=rf"{reason}.*; choose another output folder$"):
            run_missing(grid(), folder, engine)
        assert sorted(folder.rglob("*")) == before

    engine = FakeEngine()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    refused(tmp_path / "mine", "mine is not empty and holds no study")
    refused(tmp_path / "mine" / "thesis.tex", "is a file, not a folder")
    make_run(tmp_path / "run")
    refused(tmp_path / "run", "run holds a single run")
    run_missing(make_grid({}, {"data.beta": [1.0]}), tmp_path / "sweep", FakeEngine())
    refused(tmp_path / "sweep", "sweep holds a sweep, not a comparison")
    run_missing(small(tmp_path), tmp_path / "tuned", FakeEngine(at_most=0))
    refused(tmp_path / "tuned", "tuned holds a tuned comparison, not a comparison")
    run_missing(grid(1), tmp_path / "study", FakeEngine(at_most=0))
    (tmp_path / "study" / "lesson-seed0").mkdir()
    (tmp_path / "study" / "lesson-seed0" / "notes.txt").touch()
    refused(tmp_path / "study", "lesson-seed0 is not empty and holds no run")
    assert engine.asked == []


def test_hidden_files_are_nobodys(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").touch()
    assert len(run_missing(grid(1), tmp_path, FakeEngine()).runs) == 2


def test_invalid_input_leaves_no_new_folder(tmp_path: Path) -> None:
    """But an old one, and one with runs."""

    class Refusing(FakeEngine):
        def run(self, *_: object) -> None:
            raise InputError("no such data")

    run_missing(grid(1), tmp_path / "old", FakeEngine(at_most=0))
    for folder in ("new", "old"):
        with pytest.raises(InputError, match="no such data"):
            run_missing(grid(1), tmp_path / folder, Refusing())
    assert [path.name for path in tmp_path.rglob("*")] == ["old", MARKER]
    with pytest.raises(InputError, match="lesson-seed1: no such data"):
        run_missing(grid(), tmp_path / "some", FakeEngine({NAMES[2]: WRONG}), on_error="stop")
    assert len(StudyFolder(tmp_path / "some").runs()) == 2


def test_an_engine_that_cannot_be_used_writes_nothing(tmp_path: Path) -> None:
    class Absent(FakeEngine):
        def check(self) -> None:
            raise InputError("not installed")

    with pytest.raises(InputError, match="not installed"):
        run_missing(grid(), tmp_path / "out", Absent())
    assert not (tmp_path / "out").exists()


def test_a_study_that_another_process_executes_is_left_to_it(tmp_path: Path) -> None:
    class Twice(FakeEngine):
        def run(self, *_: object) -> None:
            with pytest.raises(InputError, match="another process"):
                run_missing(grid(), tmp_path, FakeEngine())

    run_missing(grid(), tmp_path, Twice())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", r"study\.toml cannot be read"),
        ("", r"study\.toml is damaged: \[study\]"),
        ("study = 3\n", r"study\.toml is damaged: \[study\]"),
        ('[study]\nformat = 1\nkind = "sweep"\nprovenance = [3]\n', r"is damaged: \[study\] provenance\.0"),
        ('[study]\nformat = 1\nkind = "sweep"\nfailures = ["a"]\n', r"is damaged: \[study\] failures"),
        ('[study]\nformat = 9\nkind = "comparison"\n', "format must be 1, got 9: another version of lesson wrote it"),
    ],
)
def test_a_damaged_study_is_reported_before_anything_is_run(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text(text)
    write_run(tmp_path / "lesson-seed0", grid(1).trials["lesson-seed0"])
    engine = FakeEngine()
    with pytest.raises(InputError, match=reason):
        run_missing(grid(), tmp_path, engine)
    assert engine.asked == []
    with pytest.raises(InputError, match=reason):
        load(tmp_path)


def test_a_study_is_loaded_without_the_runs_of_another_grid_in_its_folder(tmp_path: Path) -> None:
    """Not even if they have the same values of what varies: their mean would be of different settings."""
    tables = {"run": {"time_budget_s": 600.0}}
    run_missing(make_grid(tables, {"data.beta": [0.1, 1.0]}, 2), tmp_path, FakeEngine())
    study = run_missing(make_grid(tables, {"training.learning_rate": [0.1, 0.5]}, 2), tmp_path, FakeEngine())
    assert names(load(tmp_path)) == names(study)  # type: ignore[arg-type]
    later = tables | {"run": {"time_budget_s": 600.0, "seed": 10}, "data": {"beta": 0.5}}
    study = run_missing(make_grid(later, {"training.learning_rate": [0.1, 0.5]}, 2), tmp_path, FakeEngine())
    assert names(load(tmp_path)) == names(study)  # type: ignore[arg-type]
    assert len(study.runs) == 4


class NowhereEngine(FakeEngine):
    """Reports runs as done without writing them, like a node with storage of its own."""

    def run(self, plan: Any, hear: Any, trackers: Any = ()) -> None:
        for path in plan:
            hear(path, {"done": True, "accuracy": 0.5, "time_s": 600.0})


def test_results_that_are_not_in_the_folder_are_failures(tmp_path: Path) -> None:
    study = run_missing(grid(1), tmp_path / "out", NowhereEngine())
    assert not study.runs
    assert "all nodes must share the same storage" in study.failures["fedavg-seed0"]


def test_the_folder_is_read_under_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may finish runs between the first look and the lock: they are not executed again."""
    first = StudyFolder.check

    def check(self: StudyFolder, design: Any) -> None:
        monkeypatch.setattr(StudyFolder, "check", first)
        first(self, design)
        run_missing(grid(1), tmp_path, FakeEngine())

    monkeypatch.setattr(StudyFolder, "check", check)
    engine = FakeEngine()
    run_missing(grid(1), tmp_path, engine)
    assert engine.asked == []


def test_an_empty_folder_of_the_user_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError):
        run_missing(grid(1), tmp_path / "mine", InvalidEngine(), on_error="stop")
    assert list((tmp_path / "mine").iterdir()) == []


class InvalidEngine(FakeEngine):
    """Rejects the input of every run."""

    def run(self, plan: Any, hear: Any, trackers: Any = ()) -> None:
        for path in plan:
            hear(path, {"error": "no", "kind": "InputError"})
