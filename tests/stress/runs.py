"""Short commands to disturb, and checks of their output folders."""

import json
import random
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.stress.command import call
from tests.stress.trial import Facts, Trial

SMALL = [
    word
    for change in (
        "fleet.num_clients=8",
        "training.batch_size=5",
        "data.samples_per_client=100",
        "run.eval_every_s=800.0",
        "run.checkpoint_every_s=0.05",
        "run.device=cpu",
    )
    for word in ("--set", change)
]
GRID = """
[run]
rounds = 40

[sweep]
"strategy.name" = ["lesson", "fedavg"]
"""
RESULTS = ("metrics.jsonl", "model.safetensors", "clients.json", "config.toml", "table.json", "table.csv")


@dataclass(frozen=True)
class Command:
    """A command that resumes what it finds in its output folder."""

    name: str
    words: tuple[str, ...]

    def argv(self, out: Path) -> list[str]:
        """Return the arguments for this output folder."""
        return [*self.words, "--out", str(out)]


RUN = Command("run", ("run", "--rounds", "80", *SMALL))
COMPARE = Command("compare", ("compare", "--strategies", "lesson,fedavg", "--seeds", "1", "--rounds", "40", *SMALL))
SWEEP = Command("sweep", ("sweep", "grid.toml", *SMALL))


@dataclass(frozen=True)
class Undisturbed:
    """The results of commands that ran undisturbed, for comparison."""

    shared: Path

    def trial(self, command: Command) -> Trial:
        """Return the trial that runs a command undisturbed."""
        return Trial("undisturbed", command.name, partial(_run_undisturbed, command, self))

    def folder(self, command: Command) -> Path:
        """Return the output folder of a command."""
        return self.shared / command.name

    def seconds(self, command: Command) -> float:
        """Return how long a command takes."""
        return float((self.shared / f"{command.name}.seconds").read_text())

    def check_same(self, command: Command, out: Path) -> None:
        """Raise if an output folder differs from that of the undisturbed command in anything but wall-clock times."""
        found, expected = _content(out), _content(self.folder(command))
        assert found.keys() == expected.keys(), f"files differ: {sorted(found.keys() ^ expected.keys())}"
        different = [name for name in found if found[name] != expected[name]]
        assert not different, f"{', '.join(different)} must be those of the undisturbed command"


def write_grid(folder: Path) -> None:
    """Write the settings of the sweep to grid.toml."""
    (folder / "grid.toml").write_text(GRID)


def check_complete(folder: Path) -> None:
    """Raise if a command that was stopped left an incomplete or temporary file."""
    from lesson.experiments.folder import MARKER, StudyFolder
    from lesson.runs.checkpoints import unpacked  # imports torch, which other trials do not need
    from lesson.settings.loading import load_settings

    for path in folder.rglob("*"):
        if path.name == "metrics.jsonl":
            lines = path.read_text().splitlines(keepends=True)
            assert all(line.endswith("\n") for line in lines), f"{path} ends within a line"
            assert [json.loads(line)["round"] for line in lines] == list(range(1, len(lines) + 1)), f"{path} has gaps"
        elif path.name == "config.toml":
            load_settings(str(path))
        elif path.name == MARKER:
            StudyFolder(path.parent).read()
        elif path.name.startswith("checkpoint"):
            unpacked(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        assert not path.name.endswith(".aside"), f"{path} was left"


def _run_undisturbed(command: Command, undisturbed: Undisturbed, folder: Path, _: random.Random) -> Facts:
    write_grid(folder)
    begin = time.monotonic()
    call(command.argv(undisturbed.folder(command)), folder).check(0)
    (undisturbed.shared / f"{command.name}.seconds").write_text(str(time.monotonic() - begin))
    return {}


def _content(folder: Path) -> dict[str, bytes]:
    """Return the names of all files in a folder, with the bytes of the results, without wall-clock times."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        found[name] = path.read_bytes() if path.name in RESULTS else b""
        if path.name == "summary.json":
            summary = json.loads(path.read_text())
            found[name] = json.dumps({key: one for key, one in summary.items() if not key.startswith("wall_")}).encode()
    return found
