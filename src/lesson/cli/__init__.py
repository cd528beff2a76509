"""The command `lesson`: one class per subcommand, whose fields are the flags."""

import codecs
import contextlib
import dataclasses
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Protocol, Union

from lesson.core.interrupts import INTERRUPTED, StopSignals, ignore_signals, one_line_if_interrupted
from lesson.core.version import __version__

with one_line_if_interrupted():
    import numpy as np
    import tyro
    from tyro.conf import subcommand

    from lesson.cli.contest import ContestCommand
    from lesson.cli.data import DataCommand
    from lesson.cli.learn import CompareCommand, RunCommand
    from lesson.cli.plan import PlanCommand
    from lesson.cli.report import ReportCommand
    from lesson.cli.reproduce import ReproduceCommand
    from lesson.cli.settings import SettingsCommand
    from lesson.cli.strategies import StrategiesCommand
    from lesson.cli.sweep import SweepCommand
    from lesson.core.errors import InputError, RunStoppedError, unknown


class Command(Protocol):
    """A subcommand, constructed from its flags."""

    def run(self) -> None:
        """Execute the command."""
        ...


# Replacements for characters that a terminal cannot show.
PLAIN = {"━": "=", "◆": "*", "×": "x", "–": "-", "…": "...", "·": " ", "τ": "tau", "→": "->", "∞": "infinity"}

ABOUT = "Semi-synchronous federated learning on unequal, wireless clients."
SHELLS = ("bash", "fish", "zsh")
MAX_OPTION = 100
_FULL = {"-o": "--output"}
WRITE_COMPLETION = "--tyro-write-completion"

COMMANDS: dict[str, type[Command]] = {
    "compare": CompareCommand,
    "contest": ContestCommand,
    "data": DataCommand,
    "plan": PlanCommand,
    "report": ReportCommand,
    "reproduce": ReproduceCommand,
    "run": RunCommand,
    "settings": SettingsCommand,
    "strategies": StrategiesCommand,
    "sweep": SweepCommand,
}


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
    _settle_terminal()
    try:
        if list(argv) == ["--version"]:
            print(f"lesson {__version__}")
            return 0
        if list(argv[:1]) == ["--print-completion"]:
            argv = _completion(argv[1:])
        command = _parse(argv or ["--help"])
        with np.errstate(all="ignore"):  # out-of-range numbers become unreachable clients or unknown values
            command.run()
        sys.stdout.flush()
    except InputError as error:
        print(f"lesson: {error}", file=sys.stderr)
        return 2
    except RunStoppedError as error:
        print(f"lesson: {error}", file=sys.stderr)
        return 3
    except MemoryError:
        print("lesson: not enough memory; take fewer clients", file=sys.stderr)
        return 2
    except BrokenPipeError:
        _forget_output()
    except OSError as error:
        _forget_output()
        print(f"lesson: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _settle_terminal() -> None:
    """Handle unusual terminals: closed, very narrow, or without Unicode."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if os.environ.get("COLUMNS", "").isdecimal():
        os.environ["COLUMNS"] = str(max(int(os.environ["COLUMNS"]), 40))  # the parser's help never finishes at width 1
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


def _completion(shells: Sequence[str]) -> list[str]:
    """Return the arguments that make the parser print a completion script for a shell."""
    if len(shells) != 1 or shells[0] not in SHELLS:
        raise InputError(f"--print-completion must be one of: {', '.join(SHELLS)}, got '{' '.join(shells)}'")
    return [WRITE_COMPLETION, shells[0], "-"]


def _parse(argv: Sequence[str]) -> Command:
    """Parse the command and its flags; errors of the parser become one line."""
    if argv[0] not in COMMANDS and argv[0] not in ("-h", "--help", WRITE_COMPLETION):
        raise unknown("command", argv[0], [*COMMANDS, "--help", "--print-completion", "--version"])
    for word in argv[1:] if argv[0] in COMMANDS else ():
        if word.startswith("--") and len(option := word.partition("=")[0]) > MAX_OPTION:
            raise _unknown_option(option, argv[0])  # the parser would search for similar ones for minutes
    _check_repeats(argv)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            listed = argv[0] not in COMMANDS  # only first lines, so that all commands fit on one screen
            told = {
                name: (kind.__doc__ or "").partition("\n")[0] if listed else None for name, kind in COMMANDS.items()
            }
            kinds: Any = Union[  # noqa: UP007
                tuple(Annotated[kind, subcommand(name, description=told[name])] for name, kind in COMMANDS.items())
            ]
            command: Command = tyro.cli(
                kinds,
                prog="lesson",
                description=f"{ABOUT}\n\nExample: lesson compare --strategies lesson,fedavg --seeds 2",
                args=list(argv),
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
            )
            return command
    except SystemExit as end:
        if not end.code:
            raise
        raise _rewritten(complaint.getvalue(), argv) from None


def _check_repeats(argv: Sequence[str]) -> None:
    """Raise InputError if a flag is given twice: the parser would silently use the last one."""
    names = [_FULL.get(name, name) for name in (word.partition("=")[0].replace("_", "-") for word in argv[1:])]
    for name, times in Counter(names).items():
        if name.startswith("--") and name not in ("--", "--log", "--set") and times > 1:
            raise InputError(f"{name} must be given once, got it {'twice' if times == 2 else f'{times} times'}")


def _rewritten(complaint: str, argv: Sequence[str]) -> InputError:
    """Return the parser's message, which is in a box, as one line."""
    said = " ".join(re.sub(r"[│╭╮╰╯|+]|─+|-{4,}", " ", complaint).partition("For full helptext")[0].split())
    if number := re.search(r"Error parsing (\S+): no type matching (INT|FLOAT)", said):
        flag, kind = number.groups()
        return InputError(
            f"{flag} must be {'a whole number' if kind == 'INT' else 'a number'}, got {_given(flag, argv)!r}"
        )
    if option := re.search(r"Unrecognized (?:or misplaced )?options: ([^, ]+)", said):
        if not option[1].startswith("-"):
            return InputError(f"'{option[1]}' is one word too many; 'lesson {argv[0]} --help' shows what there is")
        return _unknown_option(option[1], argv[0])
    if missing := re.search(r"Missing value for argument '(\S+)'", said):
        return InputError(f"{missing[1]} must have a value, got none")
    return InputError(f"{said}; 'lesson --help' shows what there is")


def _unknown_option(option: str, command: str) -> InputError:
    fields = dataclasses.fields(COMMANDS[command])  # type: ignore[arg-type]  # commands are dataclasses
    flags = [f"--{field.name.replace('_', '-')}" for field in fields]
    return unknown("option", option, [*flags, "--help"])


def _given(flag: str, argv: Sequence[str]) -> str:
    """Return the value after a flag."""
    for place, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == flag:
            return (value if equals else "".join(argv[place + 1 : place + 2]))[:80]
    return ""
