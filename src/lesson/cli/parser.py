"""Command-line parser: commands are dataclasses whose fields are click's options and arguments.

Why click: its exceptions carry the option, the parameter and the command, so errors do not depend on its messages.
"""

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import field, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol

import click
from click.formatting import HelpFormatter
from click.shell_completion import CompletionItem

from lesson.core.errors import InputError, unknown
from lesson.settings.settings import Settings
from lesson.strategies import STRATEGIES

MAX_SHOWN = 80
"""Maximum number of characters shown of an invalid value."""


class Number(click.ParamType[Any, Any]):
    """A number, or one of the given words, such as "auto"; `name` is shown in the help."""

    def __init__(self, name: str, kind: str, read: Callable[[str], float], *words: str) -> None:
        self.name, self._kind, self._read, self._words = name, kind, read, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if value in self._words else self._read(value)
        except ValueError:
            self.fail(f"must be {self._kind}, got {value[:MAX_SHOWN]!r}", param, ctx)


class AnyPath(click.Path):
    """A path that the command checks by itself; `name` is shown in the help."""

    def __init__(self, name: str, path_type: type = Path) -> None:
        super().__init__(path_type=path_type, readable=False)
        self.name = name


class StrategyNames(click.types.StringParamType):
    """The name of a strategy, or several separated by commas; the shell completes the last one."""

    name = "NAME"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        before, comma, last = incomplete.rpartition(",")
        names = [name for name in sorted(STRATEGIES) if name.startswith(last) and name not in before.split(",")]
        return [CompletionItem(f"{before}{comma}{name}") for name in names]


WHOLE = Number("N", "a whole number", int)
NUMBER = Number("X", "a number", float)
SECONDS = Number("S", "a number", float)
SECONDS_OR_AUTO = Number("S", "a number or auto", float, "auto")
FILE, DIR = AnyPath("FILE"), AnyPath("DIR")
STRATEGY = StrategyNames()


class Option(click.Option):
    """An option under a heading of the help. `show_default` as text is for defaults that come from the settings."""

    def __init__(self, *args: Any, heading: str = "Options", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.heading = heading

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default  # click would put it in parentheses
        return extra


def option(*names: str, **attributes: Any) -> Any:
    """Return a dataclass field that holds an option of the command."""
    return field(metadata={"click": Option(names, **attributes)})


def argument(name: str, **attributes: Any) -> Any:
    """Return a dataclass field that holds an argument of the command."""
    return field(metadata={"click": click.Argument([name], **attributes)})


def scenario_option(**attributes: Any) -> Any:
    """Return the option --scenario, which several commands have."""
    about = "Preset (released, printed, phones, chen) or settings file."
    return option("--scenario", type=AnyPath("NAME|FILE", str), default="released", help=about, **attributes)


def with_upload_size(settings: Settings) -> Settings:
    """Return the settings with the size of an upload as a number, for commands that do not train."""
    if settings.upload.model_bits != "actual" and settings.upload.compression == "none":
        return settings
    from lesson.runs.resolve import with_upload_bits  # it imports torch, which takes seconds

    return with_upload_bits(settings)


def latencies_option(**attributes: Any) -> Any:
    """Return the option --latencies, which several commands have."""
    about = "CSV file of measured latencies (client,latency_s[,sd_s,...]), whose clients replace drawn ones."
    return option("--latencies", type=FILE, metavar="FILE.csv", help=about, **attributes)


def log_option(**attributes: Any) -> Any:
    """Return the option --log, which several commands have."""
    about = "Tracker: tensorboard, prometheus, or your own module:Class; repeatable."
    return option("--log", multiple=True, metavar="NAME", help=about, **attributes)


def data_dir_option(**attributes: Any) -> Any:
    """Return the option --data-dir, which several commands have."""
    where = "$LESSON_DATA_DIR or the cache"
    return option("--data-dir", type=DIR, show_default=where, help="Folder for data sets.", **attributes)


def lanes_option(**attributes: Any) -> Any:
    """Return the option --lanes, which commands have that execute many runs."""
    shown, about = "two per core, at most 32", "Number of runs that each GPU of this machine trains at a time."
    return option("--lanes", type=WHOLE, show_default=shown, help=about, **attributes)


class Runnable(Protocol):
    """A dataclass whose fields are made by `option` and `argument`; an instance holds what the user typed."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def run(self) -> None:
        """Execute the command."""
        ...


class Strict(click.Command):
    """A command that rejects what click accepts: an option given twice, and an option as the value of another."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # it is true when the shell asks for completions
            self._check(ctx, args)
        return super().parse_args(ctx, args)

    def _check(self, ctx: click.Context, args: list[str]) -> None:
        try:
            values, _, order = self.make_parser(ctx).parse_args(list(args))
        except click.BadOptionUsage as error:
            error.ctx = ctx  # click leaves it out
            raise
        for param, times in Counter(one for one in order if isinstance(one, click.Option)).items():
            name, value = param.opts[-1], values[param.name]
            if times > 1 and not param.multiple:
                ctx.fail(f"{name} must be given once, got it {'twice' if times == 2 else f'{times} times'}")
            for word in value if param.multiple else [value]:
                if isinstance(word, str) and word.startswith("--"):
                    ctx.fail(f"{name} must have a value, got {word[:MAX_SHOWN]!r}")


class Command(Strict):
    """A command that groups its options under headings."""

    allow_extra_args = True  # parse_args rejects them, and says which

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            ctx.fail(f"unexpected argument {extra[0][:MAX_SHOWN]!r}; see '{ctx.command_path} --help'")
        return extra

    def format_options(self, ctx: click.Context, formatter: HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                groups.setdefault(getattr(param, "heading", "Options"), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def make_command(name: str, kind: type[Runnable]) -> Command:
    """Return the command for a class, whose docstring is the help followed by an example; its own fields come first."""
    about, example = (inspect.getdoc(kind) or "").split("\n\n")
    own_first = sorted(fields(kind), key=lambda one: one.name not in inspect.get_annotations(kind))
    return Command(
        name,
        params=[one.metadata["click"] for one in own_first],
        help=about,
        epilog=example,
        callback=lambda **given: kind(**given).run(),
    )


class Group(Strict, click.Group):
    """A group that lists its commands under headings, each with its example."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._sections: dict[str, list[str]] = {}

    def add_section(self, heading: str, **kinds: "type[Runnable] | Group") -> None:
        """Add the commands of these classes, and groups of further commands."""
        self._sections[heading] = list(kinds)
        for name, kind in kinds.items():
            self.add_command(kind if isinstance(kind, Group) else make_command(name, kind))

    def format_commands(self, ctx: click.Context, formatter: HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, self.commands))
        for heading, names in self._sections.items():
            with formatter.section(heading):
                for command in map(self.commands.__getitem__, names):
                    about = command.get_short_help_str(formatter.width)
                    formatter.write_dl([(f"{command.name:{width}}", about), (" " * width, command.epilog or "")])


def input_error(error: click.UsageError) -> InputError:
    """Return the InputError for an error of click, with a message in the style of this package."""
    assert error.ctx is not None
    command, see = error.ctx.command, f"see '{error.ctx.command_path} --help'"
    params = {name: param for param in command.get_params(error.ctx) for name in param.opts}
    match error:
        case click.NoSuchCommand() if isinstance(command, click.Group):
            return unknown("command", error.command_name, command.list_commands(error.ctx))
        case click.exceptions.NoArgsIsHelpError() if isinstance(command, click.Group):
            return InputError(f"a command must be given: {', '.join(command.list_commands(error.ctx))}; {see}")
        case click.NoSuchOption():
            return unknown("option", error.option_name, [name for name in params if name.startswith("--")])
        case click.BadOptionUsage():
            is_flag = getattr(params[error.option_name], "is_flag", False)
            return InputError(f"{error.option_name} must have {'no value' if is_flag else 'a value, got none'}")
        case click.MissingParameter(param=click.Parameter() as param):
            return InputError(f"{param.human_readable_name} must be given; {see}")
        case click.BadParameter(param=click.Parameter() as param):
            return InputError(f"{param.opts[-1]} {error.message}")
    return InputError(error.message)
