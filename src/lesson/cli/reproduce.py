"""The command `lesson reproduce`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from tyro.conf import arg

from lesson.cli.console import PipedConsole
from lesson.cli.many import make_missing
from lesson.core.errors import InputError


@dataclass(frozen=True)
class ReproduceCommand:
    """Reproduce the paper's figures and tables and check its claims; rerun to continue.

    Example: lesson reproduce table2 fig2 fig3 fig4
    """

    items: Annotated[
        tyro.conf.Positional[tuple[str, ...]], arg(metavar="[ITEM …]", help_behavior_hint="(default: all)")
    ] = ()
    """table1, table2, fig2 … fig9, limits, printed, authors, choices, latencies, sawtooth, or all."""
    quick: Annotated[bool, arg(help_behavior_hint="")] = False
    """Preview in minutes: MNIST only, short runs, two seeds. It proves nothing."""
    seeds: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 5, quick: 2)")] = None
    """Number of seeds."""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: runs/paper, runs/paper-quick)")] = None
    """Output folder for runs, figures and claims; existing results are reused."""
    data_dir: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder of the data sets."""

    def run(self) -> None:
        from lesson.experiments.engines import LocalEngine
        from lesson.paper.claims import check_claims
        from lesson.paper.items import select_items
        from lesson.paper.reproduce import claim_folder, missing_runs
        from lesson.paper.scale import FULL, QUICK
        from lesson.report.page.paper_page import write_paper_page
        from lesson.report.page.study_page import REPORT
        from lesson.report.paper.items import items_in, write_claims, write_item, write_page
        from lesson.report.paper.tables import claims_table
        from lesson.runs.folder import RunFolder

        if self.seeds is not None and not 1 <= self.seeds <= 1000:
            raise InputError(f"--seeds must be 1 to 1000, got {self.seeds}")
        items, scale = select_items(self.items), QUICK if self.quick else FULL
        scale = replace(scale, seeds=self.seeds or scale.seeds)
        out = self.out or Path("runs") / ("paper-quick" if self.quick else "paper")
        claim_folder(out, scale)
        with RunFolder(out).owned():
            results = make_missing(missing_runs(items, out, scale), out, LocalEngine(data_dir=self.data_dir))
            written = []
            with Console(stderr=True).status("") as status:
                for item in items:
                    status.update(f"drawing {item.name}")
                    written.append(f"{item.name}: {', '.join(map(str, write_item(item, results, scale, out)))}")
                status.update("checking claims")
                there = items_in(out)
                findings = [] if scale.quick else check_claims(results, [item.name for item in there], scale)
                if findings:
                    written.append(f"claims: {', '.join(map(str, write_claims(findings, out)))}")
                written.append(f"page: {write_page(there, scale, out)}")
                write_paper_page(out, out / REPORT)
                written.append(f"report: {out / REPORT}")
        asked = {item.name for item in items}
        if about := [finding for finding in findings if asked & set(finding.items)]:
            PipedConsole().print(claims_table(about))
        print("\n".join(written))
