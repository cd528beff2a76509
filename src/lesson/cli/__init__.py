"""The command `lesson`: one class per subcommand, whose fields are its options."""

import codecs
import io
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from lesson.core.interrupts import INTERRUPTED, StopSignals, ignore_signals, one_line_if_interrupted
from lesson.core.version import __version__

with one_line_if_interrupted():
    import click
    from click.shell_completion import get_completion_class, shell_complete

    from lesson.cli.data import DataCommand
    from lesson.cli.learn import CompareCommand, RunCommand
    from lesson.cli.parser import Group, input_error
    from lesson.cli.plan import PlanCommand
    from lesson.cli.record import record
    from lesson.cli.replay import ReplayCommand
    from lesson.cli.report import ReportCommand
    from lesson.cli.reproduce import ReproduceCommand
    from lesson.cli.settings import SettingsCommand
    from lesson.cli.simulate import SimulateCommand
    from lesson.cli.strategies import StrategiesCommand
    from lesson.cli.sweep import SweepCommand
    from lesson.cli.tasks import TasksCommand
    from lesson.core.errors import ArgumentError, InputError, RunStoppedError, describe, traceback_of


# Replacements for characters that a terminal cannot show.
PLAIN = {"━": "=", "◆": "*", "×": "x", "–": "-", "…": "...", "·": " ", "τ": "tau", "→": "->", "∞": "infinity"}

COMPLETE_VARIABLE = "_LESSON_COMPLETE"
"""Environment variable by which a completion script asks for completions."""


def _print_completion(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is not None and not context.resilient_parsing:
        complete = get_completion_class(shell)
        assert complete is not None
        click.echo(complete(cli, {}, "lesson", COMPLETE_VARIABLE).source())
        context.exit()


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, message="lesson %(version)s", help="Show the version and exit.")
@click.option(
    "--print-completion",
    type=click.Choice(["bash", "fish", "zsh"]),
    metavar="SHELL",
    expose_value=False,
    is_eager=True,
    callback=_print_completion,
    help="Print a completion script for bash, zsh or fish and exit.",
)
def cli() -> None:
    """Semi-synchronous federated learning on unequal, wireless clients."""


cli.add_section("Plan", plan=PlanCommand, simulate=SimulateCommand, record=record, replay=ReplayCommand)
cli.add_section(
    "Train",
    run=RunCommand,
    compare=CompareCommand,
    sweep=SweepCommand,
    reproduce=ReproduceCommand,
)
cli.add_section("Results", report=ReportCommand)
cli.add_section(
    "Reference", strategies=StrategiesCommand, tasks=TasksCommand, settings=SettingsCommand, data=DataCommand
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, by default this process's, and return its exit status; errors are one line on stderr."""
    with StopSignals() as signals:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        except KeyboardInterrupt as error:
            if argv is None:
                ignore_signals()
            print(f"lesson: {error}" if str(error) else INTERRUPTED, file=sys.stderr)
            return signals.status


def _run(argv: Sequence[str]) -> int:
    """Run a command; return 0, 2 if the input is invalid, or 3 if a run could not continue."""
    _prepare_terminal()
    try:
        if instruction := os.environ.get(COMPLETE_VARIABLE):
            return shell_complete(cli, {}, "lesson", COMPLETE_VARIABLE, instruction)
        context = cli.make_context("lesson", list(argv) or ["--help"])  # cli.main() would handle Ctrl-C in its own way
        with context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:  # raised by --help, --version and --print-completion
        return end.exit_code
    except click.UsageError as error:
        print(f"lesson: {input_error(error)}", file=sys.stderr)
        return 2
    except (InputError, RunStoppedError) as error:
        if where := traceback_of(error):
            print(where, file=sys.stderr)
        shown = error.as_option() if isinstance(error, ArgumentError) else error
        print(f"lesson: {shown}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 3
    except MemoryError:
        print("lesson: not enough memory; use fewer clients", file=sys.stderr)
        return 2
    except BrokenPipeError:
        _forget_output()
    except OSError as error:
        print(f"lesson: {_problem(error)}", file=sys.stderr)
        return 2
    return 0


def _problem(error: OSError) -> str:
    """Return a message about a file, the output, or something else that failed, such as a connection."""
    if error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}"
    if error.errno is None or isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return describe(error)
    _forget_output()
    return f"the output cannot be written: {error.strerror}"


def _prepare_terminal() -> None:
    """Handle unusual terminals: closed, very narrow, or without Unicode."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    if os.environ.get("COLUMNS", "").isdecimal():
        os.environ["COLUMNS"] = str(max(int(os.environ["COLUMNS"]), 40))  # below, tables lose their content
    codecs.register_error("plain", _plain)
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper) and not output.encoding.lower().startswith("utf"):
            output.reconfigure(errors="plain")


def _forget_output() -> None:
    """Redirect pending output to /dev/null, so that Python does not fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end
