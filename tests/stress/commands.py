"""Short commands to disturb, and the outputs they produce undisturbed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.stress.command import Limits, call
from tests.stress.trial import Facts, Trial

CHANGES = (
    "fleet.num_clients=8",
    "training.batch_size=5",
    "data.samples_per_client=100",
    "run.eval_every_s=800.0",
    "run.checkpoint_every_s=0.05",
    "run.device=cpu",
)
SMALL = tuple(word for change in CHANGES for word in ("--set", change))
GRID = """
[run]
rounds = 40

[sweep]
"strategy.name" = ["lesson", "fedavg"]
"""


@dataclass(frozen=True)
class Command:
    """A command without its output folder; the options in `resume` let it continue after a kill."""

    name: str
    words: tuple[str, ...]
    resume: tuple[str, ...] = ("--resume",)

    def argv(self, out: Path) -> list[str]:
        """Return the arguments for this output folder."""
        return [*self.words, "--out", str(out), *self.resume]


RUN = Command("run", ("run", "--rounds", "80", *SMALL))
COMPARE = Command("compare", ("compare", "--strategies", "lesson,fedavg", "--seeds", "1", "--rounds", "40", *SMALL))
SWEEP = Command("sweep", ("sweep", "grid.toml", *SMALL), ())


def write_grid(folder: Path) -> None:
    """Write the settings of the sweep to grid.toml."""
    (folder / "grid.toml").write_text(GRID)


def undisturbed(command: Command, shared: Path) -> Path:
    """Return the output folder of a command that was not disturbed."""
    return shared / command.name / "runs"


def life_s(command: Command, shared: Path) -> float:
    """Return the duration of an undisturbed command in seconds."""
    return float((shared / command.name / "seconds").read_text())


def chosen(short: bool) -> Sequence[Command]:
    """Return the commands to disturb; a short stress test has no time for those that start other processes."""
    return (RUN,) if short else (RUN, COMPARE, SWEEP)


def prepare(shared: Path, short: bool) -> list[Trial]:
    """Return trials that produce the undisturbed outputs with which others are compared."""

    def make(command: Command) -> Trial:
        def do(_: Path, __: random.Random) -> Facts:
            folder = shared / command.name
            folder.mkdir(parents=True)
            write_grid(folder)
            outcome = call(command.argv(folder / "runs"), folder, Limits(200.0)).check(0)
            (folder / "seconds").write_text(str(outcome.seconds))
            return {"seconds": round(outcome.seconds, 1)}

        return Trial("undisturbed", command.name, do)

    return [make(command) for command in chosen(short)]
