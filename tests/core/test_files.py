"""Files that somebody else may have put there: FIFOs, devices, folders and symbolic links."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import lock_descriptor
from matplotlib.figure import Figure

from helpers.resuming import StoppedError
from helpers.run_folders import make_comparison, make_run
from helpers.runs import PARTS, settings
from lesson import InputError, load
from lesson.cli import main
from lesson.core.files import remove_leftovers, write_whole
from lesson.experiments.archive import ARCHIVE, read_archive
from lesson.experiments.folder import MARKER
from lesson.experiments.grid import load_grid
from lesson.experiments.tuned.design import TunedComparison
from lesson.fleet.csv_files import read_fleet
from lesson.learn.data import load_dataset
from lesson.learn.data.cifar10 import TEST_BATCH
from lesson.learn.data.idx import FILES
from lesson.report.files import save_figures
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder
from lesson.runs.trackers.tensorboard import TensorBoard
from lesson.settings.loading import load_settings
from lesson.settings.settings import Settings


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD: dict[str, Callable[[Path], object]] = {"FIFO": put_fifo, "/dev/zero": put_device, "folder": Path.mkdir}


def finished(folder: Path) -> Path:
    make_run(folder / "run")
    return folder / "run"


def read_run_file(name: str) -> Callable[[Path], tuple[Path, Callable[[], object]]]:
    def prepare(folder: Path) -> tuple[Path, Callable[[], object]]:
        run = finished(folder)
        return run / name, lambda: load(run)._repr_html_() if name != "clients.json" else RunFolder(run).read_clients()

    return prepare


def read_metrics_file(folder: Path) -> tuple[Path, Callable[[], object]]:
    run = finished(folder)
    return run / "metrics.jsonl", lambda: load(run).to_frame()


def read_comparison_file(name: str) -> Callable[[Path], tuple[Path, Callable[[], object]]]:
    def prepare(folder: Path) -> tuple[Path, Callable[[], object]]:
        make_comparison(folder / "both", num_seeds=1)
        return folder / "both" / name, lambda: load(folder / "both")

    return prepare


def read_fleet_file(setting: str) -> Callable[[Path], tuple[Path, Callable[[], object]]]:
    def prepare(folder: Path) -> tuple[Path, Callable[[], object]]:
        path = folder / "given.csv"

        def plan() -> None:
            (folder / "latencies.csv").write_text("client,latency_s\na,1\nb,2\n")
            how = ["--set", f"fleet.{setting}='{path}'"]
            if main(["plan", "--latencies", str(folder / "latencies.csv"), *how]) == 2:
                raise InputError("rejected")

        return path, plan

    return prepare


def read_data_file(dataset: str, name: str) -> Callable[[Path], tuple[Path, Callable[[], object]]]:
    def prepare(folder: Path) -> tuple[Path, Callable[[], object]]:
        inner = folder / {"cifar10": "", "fashion-mnist": "fashion-mnist"}[dataset]
        inner.mkdir(exist_ok=True)
        return inner / name, lambda: load_dataset(dataset, folder)

    return prepare


INPUTS: dict[str, Callable[[Path], tuple[Path, Callable[[], object]]]] = {
    "--scenario": lambda folder: (folder / "a.toml", lambda: load_settings(str(folder / "a.toml"))),
    "sweep file": lambda folder: (folder / "a.toml", lambda: load_grid(str(folder / "a.toml"))),
    "tuned comparison": lambda folder: (folder / "a.toml", lambda: TunedComparison.load(folder / "a.toml")),
    "--latencies": lambda folder: (folder / "a.csv", lambda: read_fleet(folder / "a.csv", Settings())),
    "presence": read_fleet_file("presence"),
    "trace": read_fleet_file("trace"),
    "config.toml": read_run_file("config.toml"),
    "summary.json": read_run_file("summary.json"),
    "clients.json": read_run_file("clients.json"),
    "metrics.jsonl": read_metrics_file,
    MARKER: read_comparison_file(MARKER),
    ARCHIVE: lambda folder: (folder / ARCHIVE, lambda: read_archive(folder / ARCHIVE)),
    "MNIST images": read_data_file("fashion-mnist", FILES[0]),
    "CIFAR-10 batch": read_data_file("cifar10", TEST_BATCH),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_that_are_no_regular_files_are_rejected(tmp_path: Path, kind: str, odd: str) -> None:
    path, read = INPUTS[kind](tmp_path)
    path.unlink(missing_ok=True)
    ODD[odd](path)
    with pytest.raises(InputError):
        read()


@pytest.mark.parametrize("odd", ODD)
def test_positions_that_are_no_regular_file_are_rejected(
    tmp_path: Path, odd: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ODD[odd](tmp_path / "positions.csv")
    assert main(["plan", "--set", f"fleet.positions='{tmp_path / 'positions.csv'}'"]) == 2
    assert "positions.csv cannot be read: " in capsys.readouterr().err


@pytest.fixture
def broken(tmp_path: Path) -> RunFolder:
    """A run that was stopped after 5 rounds, with checkpoints."""

    def stop(line: dict[str, object]) -> None:
        if line["round"] == 5:
            raise StoppedError

    with pytest.raises(StoppedError):
        execute(settings(rounds=8, checkpoint_every_s=1e-9), tmp_path / "run", progress=stop, **PARTS)
    return RunFolder(tmp_path / "run")


@pytest.mark.parametrize("odd", ODD)
def test_a_checkpoint_that_is_no_regular_file_counts_as_damaged(
    broken: RunFolder, odd: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken.checkpoint.unlink()
    ODD[odd](broken.checkpoint)
    if odd == "folder":
        with pytest.raises(InputError, match=r"checkpoint.safetensors cannot be replaced: .*; remove it"):
            execute(settings(rounds=8), broken.path, resume=True, **PARTS)
        return
    execute(settings(rounds=8), broken.path, resume=True, **PARTS)
    assert "resuming from the previous checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
@pytest.mark.parametrize("odd", ["FIFO", "/dev/zero", "folder", "symbolic link"])
def test_a_resumed_run_writes_regular_files_only(broken: RunFolder, name: str, odd: str, tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", broken.path / name
    victim.write_bytes(broken.metrics.read_bytes())
    before = victim.read_bytes()
    path.unlink(missing_ok=True)
    ODD.get(odd, lambda path: path.symlink_to(victim))(path)
    with pytest.raises(InputError, match=re.escape(name)):
        execute(settings(rounds=8), broken.path, resume=True, **PARTS)
    assert victim.read_bytes() == before


@pytest.mark.parametrize("name", [".report.html.aside", "report.html"])
def test_a_report_is_not_written_through_a_symbolic_link(tmp_path: Path, name: str) -> None:
    run, victim = finished(tmp_path), tmp_path / "victim"
    victim.write_text("precious")
    (run / name).symlink_to(victim)
    assert main(["report", str(run)]) == 0
    assert victim.read_text() == "precious"
    assert (run / "report.html").is_file()
    assert not (run / "report.html").is_symlink()


def test_figures_are_not_written_through_symbolic_links(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (".a.pdf.aside", "a.pdf"):
        (tmp_path / name).symlink_to(victim)
    save_figures({"a": Figure()}, tmp_path, [".pdf"])
    assert victim.read_text() == "precious"


def test_leftovers_of_killed_writers_are_removed_and_those_of_others_kept(tmp_path: Path) -> None:
    leftovers = [tmp_path / name for name in (".a.json.aside", ".a.json.0123abcd.aside")]
    for path in (*leftovers, tmp_path / ".b.json.aside"):
        path.write_bytes(b"{")
    with (tmp_path / ".a.json.going.aside").open("wb") as going:
        lock_descriptor(going.fileno())
        write_whole(tmp_path / "a.json", b"{}")
        assert {path.name for path in tmp_path.iterdir()} == {".a.json.going.aside", ".b.json.aside", "a.json"}
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_file_of_any_name_is_written_whole(tmp_path: Path) -> None:
    for name in ("a" * 250 + ".html", "ä" * 120 + ".html"):
        write_whole(tmp_path / name, b"1")
        write_whole(tmp_path / name, b"2")
        assert (tmp_path / name).read_bytes() == b"2"
    assert len(list(tmp_path.iterdir())) == 2


def test_the_folder_is_synced_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = [], os.fsync

    def note(number: int) -> None:
        synced.append((Path(f"/proc/self/fd/{number}").resolve(), (tmp_path / "a").exists()))
        fsync(number)

    monkeypatch.setattr("os.fsync", note)
    write_whole(tmp_path / "a", b"1")
    assert synced[-1] == (tmp_path, True)


def test_tensorboard_empties_its_own_files_only(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "events.out.tfevents.1").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").symlink_to(precious)
    with pytest.raises(InputError, match="is a symbolic link; remove it"):
        TensorBoard().begin(settings(), tmp_path / "run", [])
    (tmp_path / "run" / "tensorboard").unlink()
    (tmp_path / "run" / "tensorboard").mkdir()
    (tmp_path / "run" / "tensorboard" / "notes.txt").write_text("mine")
    tracker = TensorBoard()
    tracker.begin(settings(), tmp_path / "run", [])
    tracker.end(None)
    assert (tmp_path / "run" / "tensorboard" / "notes.txt").read_text() == "mine"
    assert (precious / "events.out.tfevents.1").read_text() == "mine"
