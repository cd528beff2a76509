"""The command `lesson reproduce`."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lesson.cli.console import PipedConsole, check_failed, execute_design
from lesson.cli.parser import DIR, NUMBER, WHOLE, argument, data_dir_option, option


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
    data_dir: Path | None = data_dir_option()

    def run(self) -> None:
        from lesson.api import out_of_reproduction
        from lesson.experiments.engines import make_engine
        from lesson.paper.items import select_items
        from lesson.paper.reproduce import Reproduction
        from lesson.paper.scale import make_scale
        from lesson.report.paper.tables import claims_table
        from lesson.report.paper.write import write_reproduction

        design = Reproduction(select_items(self.items), make_scale(self.quick, self.seeds, self.eval_jitter))
        out = self.out or out_of_reproduction(self.quick)
        design.check(out)
        flags = f"--out {out}"
        study, _ = execute_design(design, out, make_engine(data_dir=self.data_dir), flags, on_error="stop")
        check_failed(study, len(design.runs({})), flags)
        with Console(stderr=True).status("") as status:
            written, claims = write_reproduction(design, study, out, tell=status.update)
        if claims:
            PipedConsole().print(claims_table(claims).to_rich())
        for what, paths in written.items():
            print(f"{what}: {', '.join(map(str, paths))}")
