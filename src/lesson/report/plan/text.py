"""A plan for the terminal: tiers, round lengths, the first rounds as in the paper's Fig. 2, and other deadlines."""

import math

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.text import Text

from lesson.clock.records import first_tier_note
from lesson.planning.plan import DeadlineRow, Plan, TierRow, UploadRow
from lesson.report.palette import tier_colors
from lesson.report.table import Column, Table
from lesson.report.words import ROUNDING, digits, percent

MAX_TIERS_SHOWN = 14
FEW_TIERS = 3
MIN_ROUND_WIDTH, MAX_ROUND_WIDTH = 3, 9
MIN_WIDTH = 80
WIDEST = 1000


def print_plan(plan: Plan, title: str, notes: list[str], console: Console) -> None:
    """Print a plan and notes about it. Lines wrap in narrow terminals, but numbers are never cut off."""
    tiers, deadlines, uploads = (make(plan).to_rich() for make in (tier_table, deadline_table, upload_table))
    widest = console.options.update(width=WIDEST)
    widths = [console.measure(table, options=widest).maximum for table in (tiers, deadlines, uploads)]
    console.width = max(console.width, MIN_WIDTH, *widths)
    console.print(Text(title, style="bold"))
    console.print()
    console.print(Group(tiers, *_more_tiers(plan)))
    console.print(_round_lengths(plan))
    console.print()
    console.print(_schedule(plan, console))
    console.print()
    console.print(deadlines)
    if plan.uploads:
        console.print()
        console.print(uploads)
        console.print(_rates(plan))
    for note in notes:
        console.print(Text.assemble(("note: ", "yellow"), note))


def tier_table(plan: Plan) -> Table:
    """Return a row per tier; of many tiers, the fastest."""

    def latency(row: TierRow) -> str:
        return digits(row.fastest_s) + (f" – {digits(row.slowest_s)}" if len(row.clients) > 1 else "")

    columns = [
        Column("tier", lambda row: row.tier),
        Column("clients", lambda row: len(row.clients)),
        Column("share", lambda row: len(row.clients) / len(plan.fleet), percent),
        Column("latency (s)", latency),
        Column("uploads every", lambda row: "round" if row.tier == 1 else f"{row.tier} rounds"),
        Column("uploads / 1000 s", lambda row: row.uploads_per_1000s, digits),
        *_on_time_if_varying(plan),
    ]
    colors = dict(zip((row.tier for row in plan.tier_rows), tier_colors(len(plan.tier_rows)), strict=True))
    return Table(columns, plan.tier_rows[:MAX_TIERS_SHOWN], "Tiers", row_style=lambda row: colors[row.tier])


def deadline_table(plan: Plan) -> Table:
    """Return a row per deadline, with that of the plan in bold."""
    slowest_s = plan.fleet.slowest_s if plan.varying else plan.round_s["fedavg"]

    def deadline(row: DeadlineRow) -> str:
        name = digits(row.deadline_s) + ("*" if row.promoted else "")
        return f"slowest {name}" if row.deadline_s == slowest_s else name

    columns = [
        Column("deadline (s)", deadline),
        Column("tiers", lambda row: row.num_tiers),
        Column("round (s)", lambda row: row.round_s, digits),
        Column("updates /1000 s", lambda row: row.updates_per_1000s, digits),
        Column("staleness", lambda row: row.staleness, "{:.2f}".format),
        Column("served", lambda row: row.served, percent),
        Column("served by FedCS", lambda row: row.served_by_fedcs, percent),
        Column("J per update", lambda row: row.joules_per_update, lambda one: "–" if one is None else f"{one:.3g}"),
        *_on_time_if_varying(plan),
    ]
    style = lambda row: "bold" if row.deadline_s == plan.deadline_s else ""  # noqa: E731
    return Table(columns, plan.deadlines, "Other deadlines", row_style=style)


def upload_table(plan: Plan) -> Table:
    """Return a row per size of an upload: its time, and the number of clients in each tier."""

    def in_tier(tier: int) -> Column:
        return Column(f"tier {tier}", lambda row: row.tiers.get(tier, 0))

    def later(row: UploadRow) -> int:
        return sum(number for tier, number in row.tiers.items() if tier > FEW_TIERS)

    columns = [
        Column("compression", lambda row: row.compression, align="left"),
        Column("payload (kbit)", lambda row: row.bits / 1e3, digits),
        Column("upload (s)", lambda row: f"{digits(row.fastest_s)} – {digits(row.slowest_s)}"),
        *map(in_tier, range(1, FEW_TIERS + 1)),
        Column("later", later),
        Column("FedAvg (s)", lambda row: row.fedavg_round_s, digits),
    ]
    return Table(columns, plan.uploads, "Uploads")


def _rates(plan: Plan) -> Text:
    """Return the range of data rates on the clients' own bands."""
    kbps = plan.fleet.rate_bps[plan.fleet.reachable] / 1e3
    return Text(f"Data rates of uploads: {digits(kbps.min())} – {digits(kbps.max())} kbit/s", style="dim")


def _on_time_if_varying(plan: Plan) -> list[Column]:
    return [Column("on time", lambda row: row.on_time, _on_time)] if plan.varying else []


def _round_lengths(plan: Plan) -> Text:
    lesson, fedavg, fedcs = (plan.round_s[name] for name in ("lesson", "fedavg", "fedcs"))
    assert lesson is not None, "only FedAvg and FedCS may have no clients"
    in_tier_1 = int(np.count_nonzero(plan.tiers == 1))
    why = "needs a finite deadline" if in_tier_1 else "has no clients: tier 1 is empty"
    told = f"{digits(fedcs)} s for {in_tier_1} of {len(plan.fleet)} clients" if fedcs is not None else why
    waits = "–" if fedavg is None else f"{digits(fedavg)} s"
    return Text.assemble(("A round lasts  ", "bold"), f"LESSON {digits(lesson)} s   FedAvg {waits}   FedCS {told}")


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


def _on_time(share: float | None) -> str:
    """Return a share in percent, rounded down so that it never seems to reach an --on-time share that it misses."""
    if share is None:
        return "–"
    return "<1%" if 0 < share < 0.01 * (1 - ROUNDING) else f"{math.floor(100 * share + ROUNDING)}%"


def _more_tiers(plan: Plan) -> list[Text]:
    more = len(plan.tier_rows) - MAX_TIERS_SHOWN
    return [Text(f"… and {more} slower tiers, up to tier {plan.tier_rows[-1].tier}", style="dim")] if more > 0 else []


def plan_notes(plan: Plan) -> list[str]:
    """Return the notes that help to read the numbers, one line each."""
    notes = [note] if (note := first_tier_note(plan.fleet)) else []
    if any(row.promoted for row in plan.deadlines):
        notes.append("* tier 1 would be empty; the fastest client is assumed to meet this deadline")
    count, costly = len(plan.fleet), plan.fleet.too_costly
    num_costly = 0 if costly is None else int(np.count_nonzero(costly))
    if num_lost := plan.num_unreachable - num_costly:
        verb = "is" if num_lost == 1 else "are"
        link = plan.fleet.link
        why = f": their SNR is below {10 * math.log10(link.min_snr):.3g} dB" if link and link.min_snr else ""
        notes.append(f"{num_lost} of {count} clients {verb} unreachable and in no tier{why}")
    if num_costly:
        notes.append(f"updates of {num_costly} of {count} clients need more than max_update_j, so they never take part")
    if num_exhausted := sum(len(record.exhausted) for record in plan.rounds):
        notes.append(
            f"{num_exhausted} of {count} clients use up their energy budgets in the first {len(plan.rounds)} rounds; "
            "round lengths and update rates are without budgets"
        )
    if (rate := plan.fleet.error_rate) is not None:
        notes.append(
            f"uploads are corrupted with probability {100 * float(rate.min()):.3g} to {100 * float(rate.max()):.3g} %, "
            f"on average {100 * float(rate.mean()):.3g} %"
        )
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
