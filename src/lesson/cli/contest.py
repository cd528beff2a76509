"""The command `lesson contest`."""

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from tyro.conf import arg

from lesson.cli.console import PipedConsole
from lesson.cli.many import make_missing
from lesson.core.errors import InputError, RunStoppedError
from lesson.report.words import count, terminal_table

if TYPE_CHECKING:  # they import torch, which takes seconds and is not needed for --help
    import pandas as pd

    from lesson.experiments.contest.entries import Contest

MIN_WIDTH, MAX_MISSING = 180, 10


@dataclass(frozen=True)
class ContestCommand:
    """Tune strategies on small grids and compare them; rerun to continue.

    Example: lesson contest strategies --seconds 3600
    """

    entries: Annotated[
        tyro.conf.Positional[tuple[str, ...]], arg(metavar="[ENTRY …]", help_behavior_hint="(default: all)")
    ] = ()
    """Entries (such as fedavg+adam) or groups (strategies, optimizers, deadlines) to run."""
    file: Annotated[Path | None, arg(metavar="ENTRIES.toml", help_behavior_hint="(default: the package's)")] = None
    """Your own rules, groups and entries: a modified copy of the package's file."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("runs/strategies")
    """Output folder for runs, figures and tables; existing results are reused."""
    data_dir: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder of the data sets."""
    seconds: Annotated[float, arg(metavar="N", help_behavior_hint="(default: no limit)")] = math.inf
    """Interrupt runs after this many seconds of real time; rerun to continue. 0 only draws existing results."""

    def run(self) -> None:
        from lesson.experiments.contest.cases import cases_of
        from lesson.experiments.contest.entries import FILE, load_contest
        from lesson.experiments.contest.hold import claim_folder, hold
        from lesson.experiments.contest.measures import table
        from lesson.experiments.engines import LocalEngine
        from lesson.report.contest.write import missing_runs, write_contest
        from lesson.runs.folder import RunFolder

        if not self.seconds >= 0:
            raise InputError(f"--seconds must be >= 0, got {self.seconds:g}")
        engine = LocalEngine(data_dir=self.data_dir, stop_at_s=time.monotonic() + self.seconds)
        contest = load_contest(self.file or FILE)
        cases = cases_of(contest.select(self.entries), contest.rules)
        claim_folder(self.out, contest.rules)
        with RunFolder(self.out).owned():
            results, failed = hold(cases, self.out, partial(make_missing, out=self.out, engine=engine))
            with Console(stderr=True).status("drawing"):
                figures = table(contest, results)
                page = write_contest(contest, figures, results, self.out)
        self._print(contest, figures)
        missing = missing_runs(contest, results)
        for name, number in list(missing.items())[:MAX_MISSING]:
            print(f"{name}: {count(number, 'run')} missing")
        if len(missing) > MAX_MISSING:
            print(f"and of {len(missing) - MAX_MISSING} other entries; the same command goes on")
        print(f"page: {page}")
        if failed:
            raise RunStoppedError(failed)

    def _print(self, contest: "Contest", figures: "pd.DataFrame") -> None:
        """Print the tables at full width, so that no number is cut off."""
        from lesson.report.contest.tables import group_table

        console = PipedConsole()
        console.width = max(console.width, MIN_WIDTH)
        for (group, beta), rows in figures.groupby(["group", "beta"], sort=False) if len(figures) else ():
            shown = group_table(rows, contest.rules).drop(columns="settings")
            console.print(terminal_table(shown, f"{group}, β = {beta:g}, mean ± 95 % interval over seeds"))
