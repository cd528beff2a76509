"""The runs of a reproduction are executed once: not again if they are archived, nor if their folders are there."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lesson.cli import main
from lesson.core.errors import InputError
from lesson.experiments.engines import InProcessEngine
from lesson.experiments.engines.trial import Hear
from lesson.experiments.folder import StudyFolder
from lesson.experiments.missing import run_missing
from lesson.paper.duration import estimated_minutes, missing_runs
from lesson.paper.items import load_item
from lesson.paper.reproduce import Reproduction, read_scale
from lesson.paper.scale import FULL, QUICK, make_scale
from lesson.report.paper.items import write_page
from lesson.runs.trackers import Tracker
from lesson.settings.settings import Settings

pytestmark = pytest.mark.usefixtures("few_test_images")
TINY = dataclasses.replace(QUICK, seeds=1, max_rounds=4)
FIG5 = Reproduction([load_item("fig5")], TINY)
NAMES = ["fedavg-mnist-seed0", "fedcs-mnist-seed0", "lesson-mnist-seed0"]


@dataclasses.dataclass(frozen=True)
class Failing:
    """An engine whose runs all end with an error; without a `kind` of error, it must not be given any."""

    kind: str = ""

    def check(self) -> None: ...

    def run(self, plan: Mapping[Path, Settings], hear: Hear, trackers: Sequence[Tracker] = ()) -> None:
        assert self.kind, f"executes {len(plan)} runs"
        for path in plan:
            hear(path, {"error": "no longer finite", "kind": self.kind})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper")
    assert sorted(FIG5.runs({})) == NAMES
    run_missing(FIG5, out, InProcessEngine(), command="lesson reproduce fig5")
    return out


def test_finished_runs_are_not_executed_again(made: Path) -> None:
    study = run_missing(FIG5, made, Failing(), command="lesson reproduce fig5 again")
    assert sorted(run.name for run in study.runs) == NAMES
    assert {run.path for run in study.runs} == {made / name for name in NAMES}
    fedavg = StudyFolder(made).runs()["fedavg-mnist-seed0"]
    assert fedavg.curve["round"].iloc[-1] <= 4
    assert fedavg.curve["uploads"].tolist() == (50 * fedavg.curve["round"]).tolist()
    assert fedavg.versions["hardware"]
    marker = StudyFolder(made).read()
    assert marker is not None
    assert [(one.command, one.runs) for one in marker.provenance] == [("lesson reproduce fig5", 3)]


def test_archived_runs_are_not_executed_again(made: Path, tmp_path: Path) -> None:
    for name in ("study.toml", "runs.jsonl.gz"):
        shutil.copy(made / name, tmp_path / name)
    study = run_missing(FIG5, tmp_path, Failing())
    assert {run.path for run in study.runs} == {None}
    assert sorted(run.name for run in study.runs) == NAMES


def test_the_archive_is_written_again_from_the_folders_of_runs(made: Path) -> None:
    """As after a kill between the end of the last run and the writing of the archive."""
    before = (made / "runs.jsonl.gz").read_bytes()
    (made / "runs.jsonl.gz").unlink()
    run_missing(FIG5, made, Failing())
    assert (made / "runs.jsonl.gz").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "study.toml"),
        ("[study]\nformat = 1\n", r"study.toml is damaged: \[study\] kind is missing"),
        ("[study]\nformat = 9\nkind = 'reproduction'\n", "study.toml: format must be 1, got 9: another version"),
        ("[study]\nformat = 1\nkind = 'sweep'\n", "holds a sweep, not a reproduction; choose another output folder"),
    ],
)
def test_an_unusable_folder_is_reported_before_anything_is_executed(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        run_missing(FIG5, tmp_path, Failing())
    assert (tmp_path / "study.toml").read_text() == text


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").touch()
    with pytest.raises(InputError, match="is not empty and holds no study; choose another output folder"):
        run_missing(FIG5, tmp_path, Failing())
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


@pytest.mark.parametrize("asked", ["", "[reproduction]\nquick = 3\nseeds = 5\n", "[reproduction]\nquick = true\n"])
def test_a_damaged_scale_is_reported_in_one_line(
    tmp_path: Path, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.toml").write_text(f"{asked}[study]\nformat = 1\nkind = 'reproduction'\n")
    for words in (["reproduce", "table1", "--out"], ["report"]):
        assert main([*words, str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"lesson: {tmp_path / 'study.toml'} is damaged: [reproduction] ")


def test_the_jitter_of_evaluations_is_recorded_and_reaches_every_run(tmp_path: Path) -> None:
    scale = make_scale(quick=False, num_seeds=10, eval_jitter=0.5)
    jittered = Reproduction([load_item("fig5")], scale)
    assert {settings.run.eval_jitter for settings in jittered.runs({}).values()} == {0.5}
    assert {settings.run.eval_jitter for settings in FIG5.runs({}).values()} == {0.0}
    out = tmp_path / "out"
    assert main(["reproduce", "table1", "--seeds", "10", "--eval-jitter", "0.5", "--out", str(out)]) == 0
    assert read_scale(out) == scale
    assert "`lesson reproduce table1 --seeds 10 --eval-jitter 0.5`" in (out / "README.md").read_text()
    with pytest.raises(InputError, match=r"with 10 seeds and eval_jitter = 0\.5; choose another"):
        Reproduction([load_item("table1")], make_scale(quick=False, num_seeds=10)).check(out)


def test_items_that_were_not_run_are_listed_with_their_cost(tmp_path: Path) -> None:
    """LESSON alone on CIFAR-10 at three β, 5,000 rounds of 20 s, five seeds: 75,000 rounds at 870 per second."""
    assert main(["reproduce", "table1", "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "README.md").read_text()
    assert page.count("`lesson reproduce scaled` | 30 |") == 1  # also the 15 runs of Fig. 5 and 6 that it shares
    runs = missing_runs(load_item("scaled"), [load_item("fig6"), load_item("fig8")], FULL)
    assert len(runs) == 15
    assert estimated_minutes(runs.values()) == pytest.approx(75_000 / 870 / 60)
    epoch = [settings for settings in load_item("epoch").settings(FULL).values() if settings.run.seed == 0]
    assert estimated_minutes(epoch) == pytest.approx(300 * 50 / 870 / 60 * (1 + 1.7 + 1))


def test_settings_left_by_an_interrupted_call_do_no_harm(tmp_path: Path) -> None:
    assert main(["reproduce", "table1", "--out", str(tmp_path)]) == 0
    (tmp_path / "fig5.toml").touch()
    assert main(["reproduce", "table1", "--out", str(tmp_path)]) == 0
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert [claim["id"] for claim in claims] == ["networks"]


def test_runs_of_other_settings_are_not_mixed_in(made: Path) -> None:
    longer = Reproduction(FIG5.items, dataclasses.replace(TINY, max_rounds=5))
    with pytest.raises(InputError, match=r"holds \S+ with other settings \(run.rounds = 4 there, 5 here\)"):
        run_missing(longer, made, Failing())


def test_a_run_that_diverges_is_a_result_and_others_fail(tmp_path: Path, made: Path) -> None:
    failed = run_missing(FIG5, tmp_path, Failing("RunStoppedError"))
    assert not failed.runs
    marker = StudyFolder(tmp_path).read()
    assert marker is not None
    assert failed.failures == marker.failures == dict.fromkeys(NAMES, "no longer finite")
    assert not marker.provenance
    for name in NAMES:  # the files of a run that diverged before its first checkpoint
        (tmp_path / name).mkdir()
        shutil.copy(made / name / "config.toml", tmp_path / name / "config.toml")
    study = run_missing(FIG5, tmp_path, Failing("DivergedError"))
    assert {run.name: run.diverged for run in study.runs} == dict.fromkeys(NAMES, "no longer finite")
    assert {run.summary["accuracy"] for run in study.runs} == {0.1}
    assert not study.failures
    again = run_missing(FIG5, tmp_path, Failing())
    assert sorted(run.name for run in again.runs) == NAMES


def test_failed_runs_stop_the_command_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda **_: Failing("RunStoppedError"))
    assert main(["reproduce", "fig5", "--quick", "--seeds", "1", "--out", str(tmp_path / "out")]) == 3
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("lesson: 3 of 3 runs failed, first lesson-mnist-seed0: no longer finite; ")
    assert told.endswith(f"; repeat the command with --out {tmp_path / 'out'} to retry them")
    assert [path.name for path in (tmp_path / "out").glob("[!.]*")] == ["study.toml"]


@pytest.fixture(scope="module")
def with_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("table")
    assert main(["reproduce", "table1", "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b'"', b"a" * 200_000])
def test_a_damaged_table_is_reported_in_one_line(
    content: bytes, with_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(with_table, tmp_path / "out"))
    (out / "table1.csv").write_bytes(content)
    assert main(["report", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lesson: {out / 'table1.csv'} ")
    assert line.endswith("; rewrite it with lesson reproduce table1")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", None])
def test_a_damaged_table_is_reported_when_the_readme_is_written(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "table1.md").write_bytes(content)
    with pytest.raises(InputError, match=r"table1.md .*; rewrite it with lesson reproduce table1$"):
        write_page([load_item("table1")], FULL, tmp_path)


def test_a_folder_is_of_one_scale(with_table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in ((["--quick"], "holds a full reproduction with 5 seeds"), (["--seeds", "2"], "with 5 seeds")):
        assert main(["reproduce", "table1", "--out", str(with_table), *words]) == 2
        assert told in capsys.readouterr().err


def test_a_reader_that_leaves_early_loses_nothing(tmp_path: Path) -> None:
    command = f"{sys.executable} -m lesson.cli reproduce table1 --out {tmp_path}/out | head -c 1"
    subprocess.run(["bash", "-c", command], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "out" / "README.md").exists()
    assert (tmp_path / "out" / "claims.json").exists()


def test_a_quick_look_says_so_and_claims_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table1", "--quick", "--out", str(tmp_path)]) == 0
    assert "claims" not in capsys.readouterr().out
    assert not (tmp_path / "claims.json").exists()
    assert "not a valid reproduction" in (tmp_path / "table1.md").read_text()
    assert "not a valid reproduction" in (tmp_path / "README.md").read_text()


def test_items_leave_files_settings_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table1", "--out", str(tmp_path)]) == 0
    assert main(["reproduce", "fig4", "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.glob("fig4.*")} == {"fig4.png", "fig4.toml"}
    page = (tmp_path / "README.md").read_text()
    assert (tmp_path / "table1.md").read_text().rpartition("\n\n")[2] in page
    assert "![Label distributions of five clients at three concentrations β](fig4.png)" in page
    assert "Command: `lesson reproduce fig4`" in page
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert [claim["id"] for claim in claims] == ["networks", "labels-balanced"]
    for claim in claims:  # what scripts may rely on
        assert {"id", "statement", "paper", "ours", "ci95", "seeds", "verdict"} <= claim.keys()
        assert claim["ours"].keys() == claim["ci95"].keys()
        assert claim["verdict"] in ("holds", "fails", "inconclusive", "mixed")
        assert (claim["verdict"] != "mixed") or claim["which"]
    assert claims[0]["ours"]["MNIST"] == 61_706
    assert "holds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["fig55"], "unknown item 'fig55'; did you mean 'fig5'?"),
        (["fig4", "--eval-jitter", "1.5"], "eval_jitter must be a number from 0 to 1, got 1.5"),
        (["fig4", "--seeds", "0"], "the number of seeds must be a whole number from 1 to 1000, got 0"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
