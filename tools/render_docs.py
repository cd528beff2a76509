"""Generated parts of the documentation: settings, tasks, code, the command line, the API, results.

    python tools/render_docs.py           # rewrite them in docs/
    python tools/render_docs.py --check   # list the pages that are out of date, exit status 1 if there are any

A generated part stands between two comments, and the first one says what it is made of:
`<!-- generated: settings run -->` … `<!-- end -->`. The text between them is committed, so that the pages can be read
in a clone and on a code host; `make check` and `make docs` check that it is current.
"""

import argparse
import functools
import inspect
import json
import pkgutil
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import griffe

from lesson.cli import cli
from lesson.learn.tasks import BITS_PER_VALUE, BUILT_IN
from lesson.settings.reference import Description, as_text, describe_options, describe_section
from lesson.strategies import STRATEGIES
from study_tables import study_table

DOCS = Path(__file__).parent.parent / "docs"
PACKAGE = DOCS.parent / "src" / "lesson"
RESULTS = DOCS.parent / "experiments" / "paper" / "results"
PART = re.compile(r"(<!-- generated: (\w+) ?(\S*) -->\n).*?(<!-- end -->)", re.DOTALL)
HELP_WIDTH = 100
UNLISTED = {
    "Run": {"load", "load_diverged", "sections", "up_to"},
    "Study": {"first_failure"},
    "Settings": {
        *("moves", "channel_changes", "uses_positions", "input_files", "varying", "has_natural_split"),
        *(
            "check_excluded",
            "without_faults",
            "given_sections",
            "is_given",
            "with_derived",
            "differences",
            "leaves_open",
        ),
    },
    "Fleet": {"assumed_latency_ratio", "reach_s", "varying"},
    "flower.LessonStrategy": {"summary", "configure_train"},
    "flower.RecordingGrid": {
        *("set_run", "run", "create_message", "get_node_ids", "get_nodes", "push_messages", "pull_messages"),
        "send_and_receive",
    },
    "flower.Recorder": {"is_open", "note_asked", "note_answer", "note_failed", "note_nodes", "note_round"},
}
"""Members that LESSON or Flower calls, but not users; the reference omits them."""


def render(page: str) -> str:
    """Return the text of a page with its generated parts up to date."""
    return PART.sub(lambda part: f"{part[1]}\n{RENDERERS[part[2]](part[3])}\n\n{part[4]}", page)


def settings_table(section: str) -> str:
    """The settings of a section, from the class that validates them."""
    rows = [["name", "default", "unit", "allowed values", "meaning"], ["---"] * 5]
    rows += [
        [f"`{setting.name}`", _default(setting), setting.unit, setting.allowed, setting.meaning]
        for setting in describe_section(section)
    ]
    return _table(rows)


def options_table(_: str) -> str:
    """The options of all strategies."""
    rows = [["strategy", "option", "default", "unit", "allowed values", "meaning"], ["---"] * 6]
    for name, kind in sorted(STRATEGIES.items()):
        rows += [
            [f"[{name}](strategies.md#{name})", f"`{one.name}`", _code(one.default), one.unit, one.allowed, one.meaning]
            for one in describe_options(kind)
            if one.name != "deadline_s"
        ]
    return _table(rows)


def tasks_table(_: str) -> str:
    """The built-in tasks with their networks and options."""
    rows = [["task", "data and network", "parameters", "actual upload", "options"], ["---", "---", "--:", "--:", "---"]]
    for name, task in BUILT_IN.items():
        count = sum(one.numel() for one in task.network().parameters())
        options = ", ".join(f"`{option} = {default}`" for option, default in task.options.items())
        size = f"{BITS_PER_VALUE * count / 1e3:,.0f} kbit"
        rows.append([f"`{name}`", task.about, f"{count:,}", size, options or "–"])
    return _table(rows)


def task_options_table(_: str) -> str:
    """The options of all built-in tasks."""
    rows = [["task", "option", "default"], ["---"] * 3]
    for name, task in BUILT_IN.items():
        rows += [
            [f"[{name}](tasks.md#data)", f"`{option}`", _code(as_text(default))]
            for option, default in task.options.items()
        ]
    return _table(rows)


def source_code(name: str) -> str:
    """The lines that define a function or class."""
    return f"```python\n{textwrap.dedent(inspect.getsource(pkgutil.resolve_name(name)))}```"


EQUATIONS = {
    "(1), (2) losses": ("lesson.learn.evaluation:client_scores",),
    "(3) latency": ("lesson.fleet.latency:latency_s",),
    "(4) compute time": ("lesson.fleet.latency:compute_s",),
    "(5) data rate": ("lesson.radio.link:rate_bps",),
    "(6) upload time": ("lesson.radio.link:upload_s",),
    "(7) tiers": ("lesson.fleet.tiers:assign_tiers",),
    "(8), (9) slots": ("lesson.fleet.tiers:due_round", "lesson.strategies.lesson:Lesson._due"),
    "(10) aggregation": ("lesson.strategies.base:average", "lesson.learn.aggregate:add_cohort"),
    "(11), (12) local step": ("lesson.learn.reference:train_client", "lesson.learn.fused:FusedTrainer"),
}
"""The functions and classes that compute each equation of the paper; their docstrings name it."""


def equations_table(_: str) -> str:
    """The file and line of the code behind each equation."""
    rows = [["equation", "code", "line"], ["---"] * 3]
    for key, names in EQUATIONS.items():
        for place, name in enumerate(names):
            code = pkgutil.resolve_name(name)
            if not set(re.findall(r"\(\d+\)", key)) & set(re.findall(r"\(\d+\)", inspect.getsource(code))):
                raise ValueError(f"{name} does not mention Eq. {key}")
            file = Path(inspect.getsourcefile(code) or "").relative_to(PACKAGE)
            line = f"`{file}:{inspect.getsourcelines(code)[1]}`"
            rows.append(["" if place else key, f"`{name.partition(':')[2]}`", line])
    return _table(rows)


def command_line(_: str) -> str:
    """The help of every command."""
    return "\n\n".join(_helps(cli, click.Context(cli, info_name="lesson", **cli.context_settings)))


def _helps(group: click.Group, context: click.Context) -> list[str]:
    """The help of a group, followed by those of its commands."""
    parts = [_help(group, context)]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        parts.append(f"## {inner.command_path}")
        parts += _helps(command, inner) if isinstance(command, click.Group) else [_help(command, inner)]
    return parts


def _help(command: click.Command, context: click.Context) -> str:
    context.terminal_width = context.max_content_width = HELP_WIDTH
    context.show_default = True
    return f"```text\n{command.get_help(context)}\n```"


def public_name(name: str) -> str:
    """Signature and docstring of a public name of lesson, such as `run` or `testing.check_strategy`."""
    value = pkgutil.resolve_name(f"lesson.{name}")
    found = _package()[f"{value.__module__}.{value.__qualname__}".removeprefix("lesson.")]
    parts = [f"### {name}", *_describe(found, name)]
    if value in STRATEGIES.values():
        options = [f"- `{one.name}`: {one.meaning} Allowed: {one.allowed}." for one in describe_options(value)]
        parts.append("**Arguments**\n\n" + "\n".join(options))
    if isinstance(found, griffe.Class):
        for member in (one for one in _public_members(found) if one.name not in UNLISTED.get(name, ())):
            parts += [f"#### {name}.{member.name}", *_describe(member, member.name)]
    return "\n\n".join(parts)


def paper_table(name: str) -> str:
    """A table of experiments/paper/results; `claims` gives each claim with its verdict, and the counts."""
    if name != "claims":
        lines = (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()
        return "\n".join(line for line in lines if line.startswith("|"))
    claims = json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))
    totals = []
    for what, added in (("claims of the paper", False), ("that we added", True)):
        verdicts = [f"**{claim['verdict']}**" for claim in claims if claim["added"] is added]
        counts = ", ".join(f"{verdict} {number}" for verdict, number in Counter(verdicts).most_common())
        totals.append(f"{len(verdicts)} {what}: {counts}")
    constructed = sum(claim["constructed"] and claim["verdict"] == "holds" for claim in claims)
    marks = [" (added)" * claim["added"] + " (by construction)" * claim["constructed"] for claim in claims]
    rows = [[claim["statement"] + mark, f"**{claim['verdict']}**"] for claim, mark in zip(claims, marks, strict=True)]
    totals.append(f"of those that hold, {constructed} are true by construction")
    return f"{'; '.join(totals)}.\n\n{_table([['claim', 'verdict'], ['---'] * 2, *rows])}"


def study(name: str) -> str:
    """A table of tools/study_tables.py."""
    head, *rows = study_table(name)
    return _table([head, ["---"] * len(head), *rows])


@functools.cache
def _package() -> griffe.Module:
    options = griffe.GoogleOptions(returns_multiple_items=False)
    package = griffe.load("lesson", docstring_parser="google", docstring_options=options)
    assert isinstance(package, griffe.Module)
    return package


def _public_members(kind: griffe.Class) -> Iterator[griffe.Object]:
    """Methods and properties with a docstring of their own or an inherited one, in the order of the source."""
    for member in kind.members.values():
        described = isinstance(member, griffe.Function) or "property" in member.labels
        if described and not member.name.startswith("_") and member.docstring:
            assert isinstance(member, griffe.Object)
            yield member


def _describe(value: griffe.Object, name: str) -> Iterator[str]:
    if "property" not in value.labels and (signature := _signature(value, name)):
        yield f"```python\n{signature}\n```"
    for section in value.docstring.parsed if value.docstring else []:
        yield _section(section)


def _signature(value: griffe.Object, name: str) -> str:
    """The call of a function or class, one parameter per line if it is long; "" for protocols, which nobody calls."""
    if isinstance(value, griffe.Class) and any("Protocol" in str(base) for base in value.bases):
        return ""
    parameters = [one for one in getattr(value, "parameters", []) if one.name not in ("self", "cls")]
    written: list[str] = []
    for one in parameters:
        if one.kind is griffe.ParameterKind.keyword_only and "*" not in written and not _has_star(written):
            written.append("*")
        star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(one.kind, "")
        kind = f": {one.annotation}" if one.annotation else ""
        default = f" = {one.default}" if one.default is not None and not star else ""
        written.append(f"{star}{one.name}{kind}{default}")
    returns = getattr(value, "returns", None)
    result = f" -> {returns}" if returns and not isinstance(value, griffe.Class) else ""
    line = f"{name}({', '.join(written)}){result}"
    if len(line) <= HELP_WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {one}," for one in written), f"){result}"])


def _has_star(written: list[str]) -> bool:
    return any(one.startswith("*") and not one.startswith("**") for one in written)


def _section(section: griffe.DocstringSection) -> str:
    """A section of a docstring as Markdown: text as it is, arguments and attributes as a list."""
    if isinstance(section, griffe.DocstringSectionText):
        return section.value
    if isinstance(section, griffe.DocstringSectionAdmonition):
        return f"**{section.title}** {section.value.contents}"
    title = (section.title or section.kind.value.capitalize()).rstrip(":")
    title = {"Parameters": "Arguments"}.get(title, title)
    items = [_item(item) for item in section.value]
    return f"**{title}**\n\n" + "\n".join(items)


def _item(item: griffe.DocstringElement) -> str:
    named = getattr(item, "name", "") or item.annotation
    text = textwrap.indent(item.description.strip(), "  ").strip()
    return f"- `{named}`: {text}" if named else f"- {text}"


def _default(setting: Description) -> str:
    return _code(setting.default) + "".join(f"<br>{preset}: `{value}`" for preset, value in setting.presets.items())


def _code(text: str) -> str:
    return f"`{text}`" if text else "unset"


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


RENDERERS = {
    "settings": settings_table,
    "options": options_table,
    "task_options": task_options_table,
    "tasks": tasks_table,
    "source": source_code,
    "cli": command_line,
    "api": public_name,
    "equations": equations_table,
    "paper": paper_table,
    "study": study,
}


def main() -> int:
    """Rewrite or check all pages; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only list the pages that are out of date")
    check = parser.parse_args().check
    outdated = 0
    for path in sorted(DOCS.rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        if (after := render(before)) != before:
            outdated += 1
            print(f"{'outdated' if check else 'updated'}: {path.relative_to(DOCS.parent)}")
            if not check:
                path.write_text(after, encoding="utf-8")
    return int(check and outdated > 0)


if __name__ == "__main__":
    sys.exit(main())
