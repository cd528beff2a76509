"""The command `lesson plan`."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.status import Status
from tyro.conf import arg

from lesson.cli.console import PipedConsole
from lesson.core.errors import InputError
from lesson.fleet.csv_files import read_fleet
from lesson.fleet.fleet import Fleet, draw_fleet
from lesson.planning.on_time import check_share, find_deadline_s
from lesson.planning.plan import make_plan, propose_deadline_s
from lesson.report.page.plan_page import check_page_path, write_plan_page
from lesson.report.plan.text import plan_notes, print_plan, varying_notes
from lesson.settings.loading import check_set_once, load_settings
from lesson.settings.settings import Settings


@dataclass(frozen=True)
class PlanCommand:
    """Show what a deadline does to a fleet: tiers, round lengths, schedule, other deadlines. No training.

    Example: lesson plan --deadline 30 --figure plan.png
    """

    scenario: Annotated[str, arg(metavar="NAME|FILE")] = "released"
    """Preset (released, printed) or a settings file."""
    latencies: Annotated[Path | None, arg(metavar="FILE.csv", help_behavior_hint="")] = None
    """CSV file client,latency_s with measured latencies, instead of drawn ones."""
    deadline: Annotated[float | Literal["auto"] | None, arg(metavar="S|auto", help_behavior_hint="(default: 20)")] = (
        None
    )
    """Deadline of a round in seconds, or inf; auto proposes one that a quarter of the clients meet."""
    on_time: Annotated[float | None, arg(metavar="SHARE", help_behavior_hint="")] = None
    """With --deadline auto: a longer one if needed, until this share of updates arrives on time."""
    clients: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 50)")] = None
    """Number of clients to draw."""
    seed: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 0)")] = None
    """Random seed of the fleet."""
    rounds: Annotated[int, arg(metavar="N")] = 12
    """Number of rounds in the schedule."""
    figure: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also draw map, latency density and schedule: png, pdf or svg."""
    html: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write an interactive page with a movable deadline, onto which a CSV can be dropped."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print JSON instead of tables."""
    set: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE")] = ()
    """Any other setting, such as radio.power_w=0.2."""

    def run(self) -> None:
        from_file = self.latencies is not None
        if from_file and self.clients is not None:
            raise InputError("--clients must be left out with --latencies: the file says who there is")
        self._check_on_time()
        given_s = None if self.deadline == "auto" else self.deadline
        flags = {"strategy.deadline_s": given_s, "fleet.num_clients": self.clients, "run.seed": self.seed}
        check_set_once(self.set, flags)
        settings = load_settings(self.scenario, self.set, flags)
        if self.figure is not None:
            from lesson.report.files import check_figure_path  # imports matplotlib, which takes a while
            from lesson.report.plan.figure import draw_plan

            check_figure_path(self.figure)
        if self.html is not None:
            check_page_path(self.html)
        with Console(stderr=True).status("Reading the fleet" if from_file else "Drawing the fleet") as status:
            fleet = read_fleet(self.latencies, settings) if self.latencies else draw_fleet(settings)
            deadline_s = self._deadline_s(fleet, settings, status)
            status.update("Working out the plan")
            plan = make_plan(fleet, deadline_s, num_rounds=self.rounds, settings=settings, seed=settings.run.seed)
            source = f"{self.latencies}" if from_file else f"{self.scenario}, seed {settings.run.seed}"
            deadline = f"deadline {deadline_s:g} s" if deadline_s < math.inf else "no deadline"
            title = f"{len(fleet)} clients ({source}), {deadline}"
            if self.figure is not None:
                status.update("Drawing the figure")
                draw_plan(plan, title, self.figure)
            caveats = self._caveats(settings)
            if self.html is not None:
                status.update("Writing the page")
                seen = self.latencies.name if self.latencies else source  # readers of the page do not have the folder
                write_plan_page(self.html, fleet, deadline_s, seen, [*varying_notes(plan), *caveats])
            notes = plan_notes(plan) + caveats
            if self.json:
                status.update("Writing JSON")
                print(json.dumps(plan.to_dict() | {"notes": notes}, allow_nan=False))
                return
        print_plan(plan, title, notes, PipedConsole())
        if self.figure is not None:
            print(f"figure: {self.figure}")
        if self.html is not None:
            print(f"page: {self.html}")

    def _caveats(self, settings: Settings) -> list[str]:
        """Return what the plan does not show."""
        caveats = [] if self.latencies is not None else settings.caveats()
        if settings.faults.disconnects or settings.faults.corrupts:
            caveats.append("a plan does not include injected faults")
        if options := [f"strategy.{name}" for name in settings.strategy.options]:
            caveats.append(f"a plan shows LESSON with its default options: {', '.join(options)} has no effect")
        return caveats

    def _check_on_time(self) -> None:
        if self.on_time is None:
            return
        if self.deadline != "auto":
            raise InputError("--on-time must be left out without --deadline auto: it says how to choose a deadline")
        check_share(self.on_time)

    def _deadline_s(self, fleet: Fleet, settings: Settings, status: Status) -> float:
        """Return the given deadline, or one proposed for this fleet."""
        if self.deadline != "auto":
            return settings.strategy.deadline_s
        proposed_s = propose_deadline_s(fleet)
        if self.on_time is None:
            return proposed_s
        return find_deadline_s(
            fleet,
            self.on_time,
            proposed_s,
            settings=settings,
            seed=settings.run.seed,
            tell=lambda tried_s: status.update(f"Trying a deadline of {tried_s:g} s"),
        )
