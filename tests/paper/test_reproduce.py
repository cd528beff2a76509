"""Runs are made once: not again when they are kept, nor when their folders are there."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import pytest

from helpers.engines import ThisProcess
from lesson.cli import main
from lesson.core.errors import InputError, RunStoppedError
from lesson.experiments.engines.trial import Event
from lesson.experiments.missing import run_missing
from lesson.experiments.results import Results
from lesson.paper.items import load_item
from lesson.paper.reproduce import missing_runs
from lesson.paper.scale import FULL, QUICK
from lesson.report.paper.items import write_page
from lesson.runs.trackers import Tracker
from lesson.settings.settings import Settings

TINY = dataclasses.replace(QUICK, seeds=1, max_rounds=4)
NAMES = ["fedavg-mnist-seed0", "fedcs-mnist-seed0", "lesson-mnist-seed0"]


class Refusing:
    """An engine that must not be given anything to do."""

    def check(self) -> None: ...

    def run(self, plan: Mapping[Path, Settings], trackers: Sequence[Tracker] = ()) -> Generator[Event, None, None]:
        assert not plan
        yield from ()


@dataclasses.dataclass(frozen=True)
class Failing:
    """An engine whose runs all end with an error."""

    kind: str

    def check(self) -> None: ...

    def run(self, plan: Mapping[Path, Settings], trackers: Sequence[Tracker] = ()) -> Generator[Event, None, None]:
        for path in plan:
            yield path, {"error": "no longer finite", "kind": self.kind}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper")
    missing = missing_runs([load_item("fig5")], out, TINY)
    assert sorted(missing) == NAMES
    run_missing(missing, out, ThisProcess(), command="lesson reproduce fig5")
    return out


def test_what_is_kept_is_not_made_again(made: Path) -> None:
    assert sorted(Results.load(made).runs) == NAMES
    assert not missing_runs([load_item("fig5")], made, TINY)
    fedavg = Results.load(made).runs["fedavg-mnist-seed0"]
    assert fedavg.curve["round"].iloc[-1] <= 4
    assert fedavg.curve["uploads"].tolist() == (50 * fedavg.curve["round"]).tolist()
    assert fedavg.versions["hardware"]
    (note,) = json.loads((made / "provenance.json").read_text())
    assert (note["command"], note["runs"]) == ("lesson reproduce fig5", 3)


def test_damaged_notes_are_told_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text("[")
    with pytest.raises(InputError, match="is damaged"):
        run_missing(missing_runs([load_item("fig5")], tmp_path, TINY), tmp_path, Refusing(), command="")


def test_settings_left_by_a_broken_call_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "fig5.toml").touch()
    assert main(["reproduce", "table1", "--out", str(tmp_path)]) == 0
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert [claim["id"] for claim in claims] == ["networks"]


def test_finished_folders_are_read_and_not_run_again(made: Path) -> None:
    kept = (made / "runs.jsonl").read_bytes()
    (made / "runs.jsonl").unlink()
    run_missing(missing_runs([load_item("fig5")], made, TINY), made, Refusing(), command="")
    assert (made / "runs.jsonl").read_bytes() == kept


def test_runs_of_other_settings_are_not_mixed_in(made: Path) -> None:
    longer = dataclasses.replace(TINY, max_rounds=5)
    with pytest.raises(InputError, match=r"holds \S+ with other settings \(run.rounds = 4 there, 5 here\)"):
        missing_runs([load_item("fig5")], made, longer)


def test_a_run_that_diverges_is_a_result_and_others_fail(tmp_path: Path, made: Path) -> None:
    missing = missing_runs([load_item("fig5")], tmp_path, TINY)
    with pytest.raises(RunStoppedError, match="3 of 3 runs failed, the next call tries them again; first"):
        run_missing(missing, tmp_path, Failing("RunStoppedError"), command="")
    assert not Results.load(tmp_path).runs
    for name in NAMES:  # what a run leaves that was stopped
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").write_bytes((made / "runs" / name / "config.toml").read_bytes())
    stopped = run_missing(missing, tmp_path, Failing("DivergedError"), command="").runs
    assert [run.stopped for run in stopped.values()] == ["no longer finite"] * 3
    assert not missing_runs([load_item("fig5")], tmp_path, TINY)


@pytest.fixture(scope="module")
def with_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("table")
    assert main(["reproduce", "table1", "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b'"', b"a" * 200_000])
def test_a_damaged_table_is_told_in_one_line(
    content: bytes, with_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(with_table, tmp_path / "out"))
    (out / "table1.csv").write_bytes(content)
    assert main(["report", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lesson: {out / 'table1.csv'} ")
    assert line.endswith("; lesson reproduce table1 writes it again")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", None])
def test_a_damaged_table_is_told_when_the_readme_is_written(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "table1.md").write_bytes(content)
    with pytest.raises(InputError, match=r"table1.md .*; lesson reproduce table1 writes it again$"):
        write_page([load_item("table1")], FULL, tmp_path)


def test_a_folder_is_of_one_scale(with_table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in ((["--quick"], "holds the full set from 5 seeds"), (["--seeds", "2"], "from 5 seeds")):
        assert main(["reproduce", "table1", "--out", str(with_table), *words]) == 2
        assert told in capsys.readouterr().err


def test_a_reader_that_leaves_early_loses_nothing(tmp_path: Path) -> None:
    command = f"{sys.executable} -m lesson.cli reproduce table1 --out {tmp_path}/out | head -c 1"
    subprocess.run(["bash", "-c", command], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "out" / "README.md").exists()
    assert (tmp_path / "out" / "claims.json").exists()


def test_a_quick_look_says_so_and_claims_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table2", "--quick", "--out", str(tmp_path)]) == 0
    assert "claims" not in capsys.readouterr().out
    assert not (tmp_path / "claims.json").exists()
    assert "not a valid reproduction" in (tmp_path / "table2.md").read_text()
    assert "not a valid reproduction" in (tmp_path / "README.md").read_text()


def test_items_leave_files_settings_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table2", "--out", str(tmp_path)]) == 0
    assert main(["reproduce", "fig4", "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.glob("fig4.*")} == {"fig4.pdf", "fig4.png", "fig4.svg", "fig4.toml"}
    page = (tmp_path / "README.md").read_text()
    assert "| released | FedAvg | 68 | 68.3 ± 1.3 |" in page
    assert "![Labels of five clients at three concentrations β](fig4.png)" in page
    assert "Command: `lesson reproduce fig4`" in page
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert [claim["id"] for claim in claims] == ["table2", "table2-printed", "rounds-done", "labels-balanced"]
    for claim in claims:  # what scripts may rely on
        assert {"id", "statement", "paper", "ours", "ci95", "seeds", "verdict"} <= claim.keys()
        assert claim["ours"].keys() == claim["ci95"].keys()
        assert claim["verdict"] in ("holds", "holds in part", "does not hold")
        assert (claim["verdict"] != "holds in part") or claim["which"]
    assert claims[0]["ours"]["FedAvg"] == pytest.approx(68.3, abs=0.05)
    assert "holds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["fig55"], "item 'fig55' is unknown; did you mean 'fig5'?"),
        (["fig4", "--seeds", "0"], "--seeds must be 1 to 1000, got 0"),
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
