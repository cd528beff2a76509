"""The command `lesson`: one class per subcommand, its fields are the flags."""

import codecs
import contextlib
import dataclasses
import io
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import lesson
from lesson.errors import InputError, unknown
from lesson.fleet import draw_fleet
from lesson.fleet_csv import read_fleet
from lesson.plan import make_plan
from lesson.report.plan_text import plan_notes, print_plan
from lesson.settings import load_scenario
from lesson.strategies import STRATEGIES, find_strategy

arg = tyro.conf.arg


class PipedConsole(Console):
    """A console whose reader may leave early, as head does, without that being an error."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@dataclass(frozen=True)
class PlanCommand:
    """Show what a deadline does to a fleet: tiers, round lengths, schedule, other deadlines. No training.

    Example: lesson plan --deadline 30 --figure plan.png
    """

    scenario: Annotated[str, arg(metavar="NAME|FILE.toml")] = "released"
    """Preset (released, printed) or a file with a table [scenario]."""
    latencies: Annotated[Path | None, arg(metavar="FILE.csv", help_behavior_hint="")] = None
    """Measured latencies instead of drawn ones: client,latency_s."""
    deadline: Annotated[float | None, arg(metavar="S", help_behavior_hint="(default: the scenario's, 20)")] = None
    """Deadline of a round in seconds, or inf."""
    clients: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the scenario's, 50)")] = None
    """Clients to draw."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Same seed, same fleet."""
    rounds: Annotated[int, arg(metavar="N")] = 12
    """Rounds of the schedule."""
    figure: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also draw map, latency density and schedule: png, pdf or svg."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print JSON instead of tables."""
    set: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], arg(metavar="SECTION.KEY=VALUE")] = ()
    """Change any other setting, such as scenario.power_w=0.2."""

    def run(self) -> None:
        from_file = self.latencies is not None
        if from_file and self.clients is not None:
            raise InputError("--clients must be left out with --latencies: the file says who there is")
        scenario = load_scenario(self.scenario, self.set, deadline_s=self.deadline, num_clients=self.clients)
        if self.figure is not None:
            from lesson.report.plan_figure import check_figure_path, draw_plan  # matplotlib takes a while to load

            check_figure_path(self.figure)
        with Console(stderr=True).status("Reading the fleet" if from_file else "Drawing the fleet") as status:
            fleet = read_fleet(self.latencies, scenario) if self.latencies else draw_fleet(scenario, seed=self.seed)
            # A fleet somebody measured is left as it is, unless the setting itself was asked for.
            first_tier = scenario.ensure_first_tier and (
                not from_file or "ensure_first_tier" in scenario.model_fields_set
            )
            status.update("Working out the plan")
            plan = make_plan(fleet, scenario.deadline_s, ensure_first_tier=first_tier, num_rounds=self.rounds)
            source = f"{self.latencies}" if from_file else f"{self.scenario}, seed {self.seed}"
            deadline = f"deadline {scenario.deadline_s:g} s" if scenario.deadline_s < math.inf else "no deadline"
            title = f"{len(fleet)} clients ({source}), {deadline}"
            if self.figure is not None:
                status.update("Drawing the figure")
                draw_plan(plan, title, self.figure)
            notes = plan_notes(plan) + ([] if from_file else scenario.caveats())
            if self.json:
                status.update("Writing JSON")
                print(json.dumps(plan.to_dict() | {"notes": notes}, allow_nan=False))
                return
        print_plan(plan, title, notes, PipedConsole())
        if self.figure is not None:
            print(f"figure: {self.figure}")


@dataclass(frozen=True)
class StrategiesCommand:
    """List the strategies, or show one with its settings.

    Example: lesson strategies lesson
    """

    name: Annotated[tyro.conf.Positional[str | None], arg(metavar="[NAME]", help_behavior_hint="")] = None
    """Strategy to show."""

    def run(self) -> None:
        if self.name is None:
            table = Table("strategy", "what it does", box=SIMPLE_HEAD)
            for name, kind in sorted(STRATEGIES.items()):
                table.add_row(name, kind.__doc__)
            PipedConsole().print(table)
            return
        kind = find_strategy(self.name)
        print((sys.modules[kind.__module__].__doc__ or "").strip())
        for setting in dataclasses.fields(kind):  # type: ignore[arg-type]  # every registered strategy is a dataclass
            if setting.init:
                default = "required" if setting.default is dataclasses.MISSING else f"default {setting.default}"
                print(f"  {setting.name} ({default})")


# What a terminal that cannot show everything gets instead.
PLAIN = {"━": "=", "◆": "*", "×": "x", "–": "-", "…": "...", "·": " ", "τ": "tau", "→": "->", "∞": "infinity"}

COMMANDS = {"plan": PlanCommand, "strategies": StrategiesCommand}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it worked, 2 with one line on stderr if the input was wrong."""
    argv = sys.argv[1:] if argv is None else argv
    _settle_terminal()
    try:
        if list(argv) == ["--version"]:
            print(f"lesson {lesson.__version__}")
            return 0
        command = _parse(argv or ["--help"])
        with np.errstate(all="ignore"):  # numbers out of bounds end as unreachable clients or unknown values
            command.run()
        sys.stdout.flush()
    except InputError as error:
        print(f"lesson: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("lesson: not enough memory; take fewer clients", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lesson: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _forget_output()
    except OSError as error:
        _forget_output()
        print(f"lesson: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _settle_terminal() -> None:
    """Make the most of odd terminals: closed, a few columns wide, or without Unicode."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if os.environ.get("COLUMNS", "").isdecimal():
        os.environ["COLUMNS"] = str(max(int(os.environ["COLUMNS"]), 40))  # the parser's help never ends at 1
    codecs.register_error("plain", _plain)
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper) and not output.encoding.lower().startswith("utf"):
            output.reconfigure(errors="plain")


def _forget_output() -> None:
    """Send what is still to be written nowhere, so that Python does not fail on it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _parse(argv: Sequence[str]) -> PlanCommand | StrategiesCommand:
    """The command with its flags; whatever the parser finds wrong becomes one line."""
    if argv[0] not in COMMANDS and argv[0] not in ("-h", "--help"):
        raise unknown("command", argv[0], [*COMMANDS, "--help", "--version"])
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                Annotated[PlanCommand, tyro.conf.subcommand("plan")]
                | Annotated[StrategiesCommand, tyro.conf.subcommand("strategies")],
                prog="lesson",
                description="Semi-synchronous federated learning on unequal, wireless clients.",
                args=list(argv),
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise _rewritten(complaint.getvalue(), argv) from None


def _rewritten(complaint: str, argv: Sequence[str]) -> InputError:
    """What the parser put into a box, as one line in this project's words."""
    said = " ".join(re.sub(r"[│╭╮╰╯|+]|─+|-{4,}", " ", complaint).partition("For full helptext")[0].split())
    if number := re.search(r"Error parsing (\S+): .*(int|float).*?: ('.*?')", said):
        flag, kind, got = number.groups()
        return InputError(f"{flag} must be {'a whole number' if kind == 'int' else 'a number'}, got {got}")
    if option := re.search(r"Unrecognized options: ([^, ]+)", said):
        if not option[1].startswith("-"):
            return InputError(f"'{option[1]}' is one word too many; 'lesson {argv[0]} --help' shows what there is")
        flags = [f"--{field.name}" for field in dataclasses.fields(COMMANDS[argv[0]])]
        return unknown("option", option[1], [*flags, "--help"])
    if missing := re.search(r"Missing value for argument '(\S+)'", said):
        return InputError(f"{missing[1]} must have a value, got none")
    return InputError(f"{said}; 'lesson --help' shows what there is")


if __name__ == "__main__":
    sys.exit(main())
