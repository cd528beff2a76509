"""A plan for the terminal: tiers, round lengths, the first rounds as in the paper's Fig. 2, and other deadlines."""

import math

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lesson.clock.records import first_tier_note
from lesson.planning.plan import Plan
from lesson.report.palette import tier_colors

MAX_TIERS_SHOWN = 14
MIN_ROUND_WIDTH, MAX_ROUND_WIDTH = 3, 9
MIN_WIDTH = 80
WIDEST = 1000
_ROUNDING = 1e-9
"""Allowance for floating-point errors, as in 100 * 0.285 = 28.499999999999996."""


def print_plan(plan: Plan, title: str, notes: list[str], console: Console) -> None:
    """Print a plan and notes about it. Lines wrap in narrow terminals, but numbers are never cut off."""
    tiers, deadlines = _tier_table(plan), _deadline_table(plan)
    widest = console.options.update(width=WIDEST)
    widths = [console.measure(table, options=widest).maximum for table in (tiers, deadlines)]
    console.width = max(console.width, MIN_WIDTH, *widths)
    console.print(Text(title, style="bold"))
    console.print()
    console.print(tiers)
    console.print(_round_lengths(plan))
    console.print()
    console.print(_schedule(plan, console))
    console.print()
    console.print(deadlines)
    for note in notes:
        console.print(Text.assemble(("note: ", "yellow"), note))


def digits(value: float) -> str:
    """Return a number with four digits, or with all digits before the point, such as 43200 instead of 4.32e+04."""
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def counted(number: int, what: str) -> str:
    """Return a number of things, such as "1 client" or "2 clients"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _tier_table(plan: Plan) -> RenderableType:
    headings = ["tier", "clients", "share", "latency (s)", "uploads every", "uploads / 1000 s"]
    table = _table("Tiers", [*headings, *_if_varying(plan, "on time")])
    colors = tier_colors(len(plan.tier_rows))
    for row, color in list(zip(plan.tier_rows, colors, strict=True))[:MAX_TIERS_SHOWN]:
        spread = f"{digits(row.fastest_s)} – {digits(row.slowest_s)}" if len(row.clients) > 1 else digits(row.fastest_s)
        every = "round" if row.tier == 1 else f"{row.tier} rounds"
        share = percent(len(row.clients) / len(plan.fleet))
        tier = Text(f"{row.tier}", style=color)
        uploads = f"{row.uploads_per_1000s:.4g}"
        on_time = _if_varying(plan, _on_time(row.on_time))
        table.add_row(tier, f"{len(row.clients)}", share, spread, every, uploads, *on_time)
    return Group(table, *_more_tiers(plan))


def _round_lengths(plan: Plan) -> Text:
    lesson, fedavg, fedcs = (plan.round_s[name] for name in ("lesson", "fedavg", "fedcs"))
    assert lesson is not None, "LESSON can always run"
    in_tier_1 = int(np.count_nonzero(plan.tiers == 1))
    told = (
        f"{digits(fedcs)} s for {in_tier_1} of {len(plan.fleet)} clients" if fedcs is not None else _why_no_fedcs(plan)
    )
    waits = "–" if fedavg is None else f"{digits(fedavg)} s"
    return Text.assemble(("A round lasts  ", "bold"), f"LESSON {digits(lesson)} s   FedAvg {waits}   FedCS {told}")


def _why_no_fedcs(plan: Plan) -> str:
    return "needs a finite deadline" if np.any(plan.tiers == 1) else "has no clients: tier 1 is empty"


def _schedule(plan: Plan, console: Console) -> RenderableType:
    """Draw one row per tier: a line per local training with a mark at each aggregation.

    The mark is hollow if the round aggregates less than half of the tier, for example only clients that were late.
    """
    block, mark, few = "━", "◆", "◇"
    labels = [f"tier {row.tier} × {len(row.clients)}" for row in plan.tier_rows[:MAX_TIERS_SHOWN]]
    indent = max(len(label) for label in [*labels, "time (s)"]) + 2
    width = max(console.width - indent - 1, MIN_ROUND_WIDTH)
    shown = plan.rounds[: width // MIN_ROUND_WIDTH]
    cell = min(width // len(shown), MAX_ROUND_WIDTH)
    counts = [np.unique(plan.tiers[record.merged], return_counts=True) for record in shown]
    merged = [dict(zip(tiers.tolist(), number.tolist(), strict=True)) for tiers, number in counts]
    hollow = f", {few} of less than half the tier" if plan.varying else ""
    lines = [
        Text(f"First {len(shown)} rounds: a line is a local training, {mark} its aggregation{hollow}", style="bold"),
        Text("time (s)".ljust(indent) + _time_axis([record.end_s for record in shown], cell), style="dim"),
    ]
    for label, row, color in zip(labels, plan.tier_rows, tier_colors(len(plan.tier_rows)), strict=False):
        numbers = [of_tier.get(row.tier, 0) for of_tier in merged]
        ends = [block if not number else mark if 2 * number >= len(row.clients) else few for number in numbers]
        bar = "".join(block * (cell - 1) + end for end in ends)
        lines.append(Text.assemble(label.ljust(indent), (bar, color)))
    return Group(*lines, *_more_tiers(plan))


def _time_axis(ends_s: list[float], cell: int) -> str:
    """Return the ends of rounds in seconds, each right-aligned with its mark, as many as fit."""
    axis = ""
    for index, end_s in enumerate(ends_s):
        label = digits(end_s)
        room = (index + 1) * cell - len(axis)
        if room > len(label):
            axis += label.rjust(room)
    return axis


def _deadline_table(plan: Plan) -> Table:
    table = _table(
        "Other deadlines",
        [
            "deadline\n(s)",
            "tiers",
            "round\n(s)",
            "updates\n/1000 s",
            "stale\nversions",
            "served",
            "by\nFedCS",
            "J per\nupdate",
            *_if_varying(plan, "on\ntime"),
        ],
    )
    slowest_s = plan.fleet.slowest_s if plan.varying else plan.round_s["fedavg"]
    for row in plan.deadlines:
        name = digits(row.deadline_s) + ("*" if row.promoted else "")
        if row.deadline_s == slowest_s:
            name = f"slowest {name}"
        joules = "–" if row.joules_per_update is None else f"{row.joules_per_update:.3g}"
        table.add_row(
            name,
            f"{row.num_tiers}",
            digits(row.round_s),
            f"{row.updates_per_1000s:.4g}",
            f"{row.staleness:.2f}",
            percent(row.served),
            percent(row.served_by_fedcs),
            joules,
            *_if_varying(plan, _on_time(row.on_time)),
            style="bold" if row.deadline_s == plan.deadline_s else "",
        )
    return table


def _if_varying(plan: Plan, cell: str) -> list[str]:
    """Return the cell of a column that exists only if times vary, in a list; an empty list if they do not."""
    return [cell] if plan.varying else []


def percent(share: float) -> str:
    """Return a share in whole percent, rounded half up; only exact shares of 0 and 1 are 0% and 100%."""
    if 0 < share < 0.005 * (1 - _ROUNDING):
        return "<1%"
    if 0.995 * (1 - _ROUNDING) <= share < 1:
        return ">99%"
    return f"{math.floor(100 * share + 0.5 + _ROUNDING)}%"


def _on_time(share: float | None) -> str:
    """Return a share in percent, rounded down so that it never seems to reach an --on-time share that it misses."""
    if share is None:
        return "–"
    return "<1%" if 0 < share < 0.01 * (1 - _ROUNDING) else f"{math.floor(100 * share + _ROUNDING)}%"


def _table(title: str, headings: list[str]) -> Table:
    """Return an empty table with right-aligned columns."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _more_tiers(plan: Plan) -> list[Text]:
    more = len(plan.tier_rows) - MAX_TIERS_SHOWN
    return [Text(f"… and {more} slower tiers, up to tier {plan.tier_rows[-1].tier}", style="dim")] if more > 0 else []


def plan_notes(plan: Plan) -> list[str]:
    """Return the notes that help to read the numbers, one line each."""
    notes = [note] if (note := first_tier_note(plan.fleet)) else []
    if any(row.promoted for row in plan.deadlines):
        notes.append("* tier 1 would be empty; the fastest client is assumed to meet this deadline")
    if plan.num_unreachable:
        verb = "is" if plan.num_unreachable == 1 else "are"
        notes.append(f"{plan.num_unreachable} of {len(plan.fleet)} clients {verb} unreachable and in no tier")
    return notes + varying_notes(plan)


def varying_notes(plan: Plan) -> list[str]:
    """Return a note on what the latencies and tiers of a plan mean if times vary; none if they do not."""
    if not plan.varying:
        return []
    without = ", before their error" if "estimate_error" in plan.varying else ""
    return [
        f"latencies vary ({', '.join(plan.varying)}): latencies and tiers are the server's first estimates{without}; "
        "round lengths of LESSON and FedAvg are means of simulations, and update rates follow from both"
    ]
