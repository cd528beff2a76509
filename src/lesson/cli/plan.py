"""The command `lesson plan`."""

import json
import math
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.status import Status

from lesson.cli.console import PipedConsole
from lesson.cli.parser import (
    FILE,
    NUMBER,
    SECONDS_OR_AUTO,
    WHOLE,
    latencies_option,
    option,
    scenario_option,
    with_upload_size,
)
from lesson.core.errors import InputError
from lesson.fleet.fleet import Fleet, draw_fleet
from lesson.flight.fit import fit
from lesson.flight.recording import read_recording
from lesson.planning.on_time import find_deadline_s
from lesson.planning.plan import Plan, make_plan, propose_deadline_s
from lesson.report.page.explorer import Advice, Origin
from lesson.report.page.plan_page import check_page_path, write_plan_page
from lesson.report.plan.text import plan_notes, print_plan, varying_notes
from lesson.report.words import count
from lesson.settings.loading import check_set_once, load_settings
from lesson.settings.settings import RULES, Settings, excluded_by

_fleet = partial(option, heading="Fleet")
_schedule = partial(option, heading="Schedule")
_output = partial(option, heading="Output")


@dataclass(frozen=True)
class PlanCommand:
    """Show what a deadline does to a fleet, without training. Prints tiers, round lengths and a schedule.

    Example: lesson plan --deadline 30 --figure plan.png
    """

    scenario: str = scenario_option(heading="Fleet")
    latencies: Path | None = latencies_option(heading="Fleet")
    flight: Path | None = _fleet(
        "--flight",
        type=FILE,
        metavar="FILE.jsonl",
        help="Recording of a federation, flight.jsonl, whose clients replace drawn ones.",
    )
    clients: int | None = _fleet("--clients", type=WHOLE, show_default="50", help="Number of clients to draw.")
    seed: int | None = _fleet("--seed", type=WHOLE, show_default="0", help="Random seed of the fleet.")
    set: tuple[str, ...] = _fleet(
        "--set", multiple=True, metavar="KEY=VALUE", help="Any other setting, such as radio.power_w=0.2; repeatable."
    )
    deadline: float | Literal["auto"] | None = _schedule(
        "--deadline",
        type=SECONDS_OR_AUTO,
        metavar="S|auto",
        show_default="20",
        help="Round deadline in seconds, or inf; auto proposes 1.1 times the latency within which the fastest quarter "
        "of the clients finish, rounded up to two digits.",
    )
    on_time: float | None = _schedule(
        "--on-time",
        type=NUMBER,
        metavar="SHARE",
        help="With --deadline auto: raise the proposal until this share of updates arrives on time, such as 0.9.",
    )
    compressors: bool = _schedule(
        "--compressors", is_flag=True, help="Also show the tiers that result from each compressor of uploads."
    )
    rounds: int = _schedule("--rounds", type=WHOLE, default=12, help="Number of rounds to schedule.")
    figure: Path | None = _output(
        "--figure", type=FILE, help="Also draw a map, the latency density and the schedule: .png, .pdf or .svg."
    )
    html: Path | None = _output("--html", type=FILE, help="Also write an interactive HTML page to try other deadlines.")
    json: bool = _output("--json", is_flag=True, help="Print JSON instead of tables.")

    def run(self) -> None:
        self._check()
        settings = self._settings()
        file = settings.fleet.latencies if self.flight is None else str(self.flight)
        if self.figure is not None:
            from lesson.report.files import check_figure_path  # imports matplotlib, which takes a while
            from lesson.report.plan.figure import draw_plan

            check_figure_path(self.figure)
        if self.html is not None:
            check_page_path(self.html)
        with Console(stderr=True).status("Reading the fleet" if file else "Drawing the fleet") as status:
            fleet, fit_notes = self._make_fleet(settings)
            self._check_latencies_vary(fleet, settings)
            deadline_s = self._deadline_s(fleet, settings, status)
            status.update("Computing the plan")
            plan = make_plan(
                fleet,
                deadline_s,
                num_rounds=self.rounds,
                settings=settings,
                seed=settings.run.seed,
                upload_bits=self._upload_bits(settings, fleet.model_bits),
            )
            source = file or f"{self.scenario}, seed {settings.run.seed}"
            deadline = f"deadline {deadline_s:g} s" if deadline_s < math.inf else "no deadline"
            title = f"{count(len(fleet), 'client')} ({source}), {deadline}"
            if self.figure is not None:
                status.update("Drawing the figure")
                draw_plan(plan, title, self.figure)
            caveats = [*fit_notes, *self._caveats(fleet, settings)]
            if self.html is not None:
                status.update("Writing the page")
                seen = Path(file).name if file else source  # readers of the page do not have the folder
                page_notes = [*varying_notes(plan), *caveats]
                origin = Origin(seen, self._flags_of_run(), None if self.flight is None else str(self.flight))
                write_plan_page(self.html, fleet, deadline_s, origin, page_notes, self._advice(plan, fleet))
            notes = plan_notes(plan) + caveats
            if self.compressors and not plan.uploads:
                notes.append(
                    "compressors are not shown: upload times are unknown; a file of latencies can list upload_s"
                )
            if self.json:
                status.update("Writing JSON")
                print(json.dumps(plan.to_dict() | {"notes": notes}, allow_nan=False))
                return
        print_plan(plan, title, notes, PipedConsole())
        if self.figure is not None:
            print(f"figure: {self.figure}")
        if self.html is not None:
            print(f"page: {self.html}")

    def _make_fleet(self, settings: Settings) -> tuple[Fleet, list[str]]:
        """Return the fleet, and notes on how it was fitted to a recording."""
        if self.flight is None:
            return draw_fleet(settings), []
        fitted = fit(read_recording(self.flight))
        return fitted.fleet(settings), [
            *fitted.notes,
            "latencies are the medians of the recording; lesson replay simulates how they vary",
        ]

    def _upload_bits(self, settings: Settings, model_bits: float) -> dict[str, float] | None:
        """Return the sizes of compressed uploads, if they are to be shown."""
        if not self.compressors:
            return None
        from lesson.runs.resolve import compressed_bits  # it imports torch, which takes seconds

        return compressed_bits(settings, model_bits)

    def _flags_of_run(self) -> str | None:
        """Return the flags of `lesson run` for the same clients, without the deadline; None for a recording."""
        if self.flight is not None:
            return None
        words = [] if self.scenario == "released" else ["--scenario", self.scenario]
        words += [] if self.latencies is None else ["--latencies", str(self.latencies)]
        words += [] if self.clients is None else ["--set", f"num_clients={self.clients}"]
        words += [] if self.seed is None else ["--seed", str(self.seed)]
        return shlex.join([*words, *(word for change in self.set for word in ("--set", change))])

    def _check(self) -> None:
        """Raise InputError for options that do not go together."""
        if self.latencies is not None and self.clients is not None:
            raise InputError("--clients cannot be combined with --latencies: the file lists the clients")
        for flag, given in (("--latencies", self.latencies), ("--clients", self.clients)):
            if self.flight is not None and given is not None:
                raise InputError(f"{flag} cannot be combined with --flight: the recording lists the clients")
        if self.on_time is not None and self.deadline != "auto":
            raise InputError("--on-time requires --deadline auto")

    def _settings(self) -> Settings:
        """Return the settings that the options give, with the actual size of the model."""
        given_s = None if self.deadline == "auto" else self.deadline
        flags = {
            "strategy.deadline_s": given_s,
            "fleet.num_clients": self.clients,
            "fleet.latencies": None if self.latencies is None else str(self.latencies),
            "run.seed": self.seed,
        }
        check_set_once(self.set, flags)
        settings = load_settings(self.scenario, self.set, flags)
        if self.flight is not None:
            settings.check_excluded("latencies", "a recording")
            if settings.fleet.latencies:
                raise InputError("--flight cannot be combined with [fleet] latencies: both list the clients")
            if settings.upload.compression != "none":
                raise InputError("--flight cannot be combined with [upload] compression: its upload times are measured")
        return with_upload_size(settings)

    def _caveats(self, fleet: Fleet, settings: Settings) -> list[str]:
        """Return what the plan does not show."""
        caveats = settings.caveats(times_vary=fleet.spread is not None)
        is_usual = not settings.is_given("upload.model_bits") and "upload.model_bits" not in settings.derived
        if is_usual and not settings.fleet.latencies and self.flight is None:
            size = f"{settings.upload.whole_bits / 1e3:g} kbit"
            caveats.append(
                f"a model has {size}, as in the preset {settings.preset}; model_bits = actual charges the size of the "
                "task's own"
            )
        if settings.radio.allocation:
            caveats.append(
                "the allocation counts in FedAvg's round and in the schedule; tiers, uploads and other deadlines are "
                "those on each client's own band"
            )
        if settings.faults.disconnects:
            caveats.append("a plan does not include injected disconnections")
        if settings.server.overhead_s:
            caveats.append(
                f"a plan does not include server.overhead_s = {settings.server.overhead_s:g} in round lengths"
            )
        if options := [f"strategy.{name}" for name in settings.strategy.options]:
            caveats.append(f"a plan shows LESSON with its default options: {', '.join(options)} has no effect")
        return caveats

    def _advice(self, plan: Plan, fleet: Fleet) -> Advice:
        """Return the deadline that a page proposes: the plan's own with --deadline auto."""
        proposed_s = plan.deadline_s if self.deadline == "auto" else propose_deadline_s(fleet)
        if not plan.varying:
            return Advice(proposed_s, self.on_time)
        shares = {row.deadline_s: row.on_time for row in plan.deadlines} | {plan.deadline_s: plan.on_time}
        return Advice(proposed_s, self.on_time, shares.get(proposed_s), plan.round_s["fedavg"])

    def _check_latencies_vary(self, fleet: Fleet, settings: Settings) -> None:
        if self.on_time is None or fleet.varying(settings):
            return
        possible = [name for _, name, rules in RULES if rules["varies"]]
        if settings.fleet.latencies or self.flight is not None:
            possible = [name for name in possible if name not in excluded_by("latencies")]
        possible += ["sd_s in the file of latencies"] if settings.fleet.latencies else []
        names = f"{', '.join(possible[:-1])} or {possible[-1]}"
        raise InputError(f"--on-time has no effect unless latencies vary; set {names}")

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
            before_try=lambda tried_s: status.update(f"Trying a deadline of {tried_s:g} s"),
        )
