"""The command `lesson reproduce`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesson.cli.console import PipedConsole
from lesson.cli.parser import DIR, NUMBER, WHOLE, argument, data_dir_option, lanes_option, option


@dataclass(frozen=True)
class ReproduceCommand:
    """Reproduce the paper's figures and check its claims. Repeat the command to continue.

    Example: lesson reproduce table2 fig2 fig3 fig4
    """

    items: tuple[str, ...] = argument(
        "items",
        nargs=-1,
        metavar="[ITEM]...",
        help="table1, table2, fig2 to fig9, limits, printed, authors or choices; all of these by default. Further "
        "checks on request: literal, scaled, epoch or mnist.",
    )
    quick: bool = option(
        "--quick",
        is_flag=True,
        help="Quick look in minutes: MNIST only, short runs, two seeds. Not a valid reproduction.",
    )
    seeds: int | None = option("--seeds", type=WHOLE, show_default="5, or 2 with --quick", help="Number of seeds.")
    eval_jitter: float = option(
        "--eval-jitter",
        type=NUMBER,
        default=0.0,
        help="Largest share of the interval by which evaluations are moved at random, 0 to 1.",
    )
    out: Path | None = option(
        "--out", type=DIR, show_default="runs/paper[-quick]", help="Output folder; finished runs in it are reused."
    )
    lanes: int | None = lanes_option()
    data_dir: Path | None = data_dir_option()

    def run(self) -> None:
        from lesson import api
        from lesson.report.paper.tables import claims_table

        how: dict[str, Any] = {"num_seeds": self.seeds, "eval_jitter": self.eval_jitter, "data_dir": self.data_dir}
        how |= {"num_lanes": self.lanes}
        done = api.reproduce(*self.items, quick=self.quick, out=self.out, **how)
        if done.claims:
            PipedConsole().print(claims_table(done.claims).to_rich())
        for what, paths in done.paths.items():
            print(f"{what}: {', '.join(map(str, paths))}")
