"""A replay for the terminal: recorded reality beside simulated alternatives, a recommendation, and checks."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lesson.flight.advice import Advice
from lesson.flight.check import Check, Prediction
from lesson.flight.replay import Outcome, Replay
from lesson.report.metric_words import metric_column, target_text, unit_of
from lesson.report.plan.text import counted, percent

if TYPE_CHECKING:  # it imports torch, which takes seconds
    from lesson.experiments.study import Study

COLUMNS = {
    "round_s": "round\n(s)",
    "updates_per_h": "updates\n/ h",
    "staleness": "stale\nversions",
    "on_time": "on\ntime",
    "wasted": "wasted",
    "joules": "J per\nupdate",
}
SHARES = ("on_time", "wasted")
MAX_NAMED = 3
MIN_WIDTH = 100
WIDEST = 1000


def print_replay(result: Replay, advice: Advice, notes: Sequence[str], console: Console) -> None:
    """Print what happened, what would have happened with other strategies, and the recommendation."""
    if console.is_terminal and console.width < MIN_WIDTH:
        table = _table(result, max_named=0)
        console.width = max(console.width, console.measure(table, options=console.options.update(width=WIDEST)).maximum)
    else:
        table = _table(result)
        console.width = max(console.width, MIN_WIDTH)
    fitted = result.fitted
    clients, rounds = counted(len(fitted.names), "client"), counted(result.reality.num_rounds, "round")
    title = f"{fitted.recording.name}: {clients}, {fitted.duration_s:.0f} s, {rounds}"
    console.print(Text(title, style="bold"))
    console.print()
    console.print(table)
    if not table.show_edge:
        console.print()
    console.print(Text.assemble((advice.sentence, "bold")))
    for outcome in result.outcomes:
        if outcome.note:
            console.print(Text.assemble(("note: ", "yellow"), f"{outcome.candidate.label}: {outcome.note}"))
        if outcome.problem:
            console.print(Text.assemble(("note: ", "yellow"), f"{outcome.candidate.label}: {outcome.problem}"))
    for note in notes:
        console.print(Text.assemble(("note: ", "yellow"), note))


def _table(result: Replay, max_named: int = MAX_NAMED) -> Table:
    """Return the recorded run and the simulated strategies; updates per hour are shown with their interval."""
    known = [name for name in COLUMNS if name != "joules" or _energy_is_known(result)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_edge=max_named > 0)
    table.add_column("strategy", no_wrap=True)
    for name in known:
        table.add_column(COLUMNS[name], justify="right", no_wrap=True)
    table.add_column("not\nserved", justify="right")
    reality = result.reality
    cells = [_cell(name, reality.values[name]) for name in known]
    table.add_row(
        f"recorded: {reality.strategy}", *cells, _names(result, reality.not_served.tolist(), max_named), style="bold"
    )
    for outcome in result.outcomes:
        if not outcome.problem:
            shown = [_shown(name, outcome) for name in known]
            table.add_row(outcome.candidate.label, *shown, _names(result, outcome.not_served.tolist(), max_named))
    return table


def print_check(check: Check, name: str, console: Console) -> None:
    """Print how well the first half of a recording predicts the second."""
    console.print(Text(f"{name}: the second half, predicted from the first ({check.strategy})", style="bold"))
    console.print()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("", "predicted", "95 % interval", "measured", "error", "covered"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for one in check.predictions:
        error = "–" if math.isnan(one.error) else percent(one.error)
        spread, mark = one.predicted, "yes" if one.is_covered else "no"
        interval = f"{_value(one, spread.low)} – {_value(one, spread.high)}"
        table.add_row(one.what, _value(one, spread.mean), interval, _value(one, one.measured), error, mark)
    console.print(table)
    for line in check_lines(check):
        console.print(line)


def check_lines(check: Check) -> list[str]:
    """Return order, tiers and coverage as lines of text."""
    lines = []
    if check.num_pairs:
        lines.append(f"order of clients by latency: {percent(check.order)} of {check.num_pairs} pairs as predicted")
    right = check.num_clients - len(check.wrong_tiers)
    moved = ", ".join(f"{name} (tier {one}, then {other})" for name, one, other in check.wrong_tiers[:MAX_NAMED])
    lines.append(
        f"tiers at {check.deadline_s:g} s: {right} of {check.num_clients} as predicted{f'; {moved}' if moved else ''}"
    )
    lines.append(f"latencies within the predicted 95 % of their client: {percent(check.latency_coverage)}")
    if not math.isnan(check.round_coverage):
        lines.append(f"rounds within the predicted 95 % of single rounds: {percent(check.round_coverage)}")
    return lines


def accuracy_rows(study: "Study") -> list[dict[str, str]]:
    """Return the score of each strategy at the end of training, and its times to targets, as text."""
    from lesson.report.study.compare_text import cell, reached_targets  # imports pandas, which takes a while

    table, metric = study.table(), study.metric
    targets = {
        f"time to {target_text(metric, one)} (s)": f"time_to_{one:g}" for one in reached_targets(table, metric)[-2:]
    }
    return [
        {
            "strategy": str(name),
            f"{metric.name} at the end{unit_of(metric)}": cell(table.loc[name], *metric_column(metric, metric.last10)),
            **{heading: cell(table.loc[name], column, 1, 0) for heading, column in targets.items()},
        }
        for name in table.index
    ]


def accuracy_sentence(study: "Study", advice: Advice) -> str:
    """Return which strategy has the best score after training, and whether the recommendation differs."""
    table, metric = study.table(), study.metric
    if not len(table):
        return ""
    scores = table[metric.last10]
    best = str(scores.idxmax() if metric.higher_is_better else scores.idxmin())
    label = advice.outcome.candidate.strategy if advice.outcome is not None else ""
    named = f"After training, {best} has the best mean {metric.name}"
    if label in ("", best):
        return f"{named}."
    return f"{named}, not {label}: the recommendation compares schedules only, so prefer {best} for this task."


def _value(prediction: Prediction, value: float) -> str:
    return percent(value) if prediction.what.startswith("share") else f"{value:.4g} {prediction.unit}".strip()


def _shown(measure: str, outcome: Outcome) -> str:
    spread = outcome.spread(measure)
    mean, low, high = (_cell(measure, value) for value in (spread.mean, spread.low, spread.high))
    return f"{mean} ({low}–{high})" if measure == "updates_per_h" else mean


def _cell(measure: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    if measure in SHARES:
        return percent(min(max(value, 0.0), 1.0))
    return f"{value:.2f}" if measure == "staleness" else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _names(result: Replay, clients: list[int], max_named: int) -> str:
    """Return the names of clients, cut after `max_named`; their number if that is 0."""
    names = [result.fitted.names[client] for client in clients]
    if not names or not max_named:
        return f"{len(names)}" if names else "–"
    more = f" and {len(names) - max_named} more" if len(names) > max_named else ""
    return ", ".join(names[:max_named]) + more


def _energy_is_known(result: Replay) -> bool:
    return any(not math.isnan(outcome.spread("joules").mean) for outcome in result.outcomes if not outcome.problem)
