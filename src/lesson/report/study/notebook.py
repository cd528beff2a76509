"""Display of runs and studies in notebooks: small HTML tables that follow the page's color theme."""

from collections.abc import Iterable, Sequence
from html import escape

from lesson.experiments.naming import short_name
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.report.metric_words import metric_text, plain_number, target_text
from lesson.report.study.compare_text import cell, what_is_shown
from lesson.report.study.groups import groups_of, is_on_wall_clock, labels_in_words, title_of
from lesson.report.study.sweep_text import columns_of
from lesson.report.words import count

MAX_NOTES = 3
_CARD = (
    "display:inline-block;max-width:100%;overflow-x:auto;padding:.7em 1em;border:1px solid rgba(128,128,128,.4);"
    "border-radius:6px;font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;color:inherit"
)
_TABLE = "border-collapse:collapse;margin:.5em 0 0;color:inherit;font-size:13px;font-variant-numeric:tabular-nums"
_CELL = "padding:.2em .8em .2em 0;white-space:nowrap;border:0;background:none;color:inherit"
_HEAD = f"{_CELL};font-weight:600;vertical-align:bottom;border-bottom:1px solid rgba(128,128,128,.5)"
_FAINT = "opacity:.75"


def run_card(run: Run) -> str:
    """Return the results of a run as HTML."""
    told, metric = run.summary, run.metric
    reached = {target_text(metric, target): told["time_to_s"].get(f"{target:g}") for target in metric.targets}
    times = [f"{name} at {seconds:,.0f} s" for name, seconds in reached.items() if seconds is not None]
    bytes_up = f", {told['bytes_up'] / 1e6:,.1f} MB" if "bytes_up" in told else ""  # early archives do not have it
    energy = "" if told["energy_j"] is None else f", {told['energy_j'] / 1000:,.1f} kJ"
    seconds = "seconds" if is_on_wall_clock(run) else "simulated seconds"
    rows = {
        f"final {metric.name}": f"{metric_text(metric, told[metric.name])}; mean of the last evaluations "
        f"{metric_text(metric, told[metric.last10])}",
        **({"targets reached": ", ".join(times) or "none"} if metric.targets else {}),
        **{f"final {name}": plain_number(value) for name, value in told.get("metrics", {}).items()},
        "length": f"{told['rounds']:,} rounds, {told['time_s']:,.0f} {seconds}",
        "uploads": f"{told['uploads']:,}{bytes_up}{energy}",
        **({"late updates": f"{told['misses']:,}"} if "misses" in told else {}),
        **({"tier changes": f"{told['retiered']:,}"} if "retiered" in told else {}),
        "folder": str(run.path or "none (archived)"),
    }
    heading = f"{_dot(groups_of(Study([run]))[0].look[0])}<b>{escape(told['strategy'])}</b>"
    title = f"{title_of(run.settings)}, seed {told['seed']}"
    body = "".join(_row([name, value], "left") for name, value in rows.items())
    return _card(heading, title, body, told["notes"])


def study_card(study: Study) -> str:
    """Return the results of a study as HTML, one row per group: mean ± half the 95 % interval over seeds."""
    table = study.means()
    columns = columns_of(table, study.metric) if len(table) else {}
    headings = [*map(short_name, study.by), "seeds", *columns]
    lines = [_row(headings, "right", _HEAD)]
    labels = map(labels_in_words, study.groups())
    for group, said, (_, figures) in zip(groups_of(study), labels, table.iterrows(), strict=True):
        cells = [f"{len(group.runs)}", *(cell(figures, *column) for column in columns.values())]
        lines.append(_row([*said, *cells], "right", dot=group.look[0]))
    title = title_of(*(run.settings for run in study.runs)) if study.runs else "no finished runs"
    heading = f"<b>{count(len(study.runs), 'run')}</b>"
    failed = [f"{name} is not included: {reason}" for name, reason in study.failures.items()]
    notes = dict.fromkeys(note for run in study.runs for note in run.summary["notes"])
    return _card(heading, f"{title}; {what_is_shown(table)}", "".join(lines), [*failed, *notes])


def _card(heading: str, title: str, body: str, notes: Sequence[str]) -> str:
    more = [f"and {len(notes) - MAX_NOTES} more"] if len(notes) > MAX_NOTES else []
    told = "".join(f'<div style="{_FAINT}">{escape(note)}</div>' for note in [*notes[:MAX_NOTES], *more])
    return (
        f'<div style="{_CARD}"><div>{heading} <span style="{_FAINT}">{escape(title)}</span></div>'
        f'<table style="{_TABLE}"><tbody>{body}</tbody></table>{told}</div>'
    )


def _row(cells: Iterable[str], align: str, style: str = _CELL, dot: str = "") -> str:
    """Return a table row; its first cell is left-aligned and starts with a dot of the given color, if any."""
    first, *others = (escape(text).replace("\n", "<br>") for text in cells)
    right = "".join(f'<td style="{style};text-align:{align}">{text}</td>' for text in others)
    return f'<tr style="background:none"><td style="{style};text-align:left">{_dot(dot)}{first}</td>{right}</tr>'


def _dot(color: str) -> str:
    """Return a dot with a rim, which makes black visible on a dark background; empty without a color."""
    rim = "border:1px solid rgba(160,160,160,.8);border-radius:50%;margin-right:.5em"
    size = "display:inline-block;width:.65em;height:.65em"
    return f'<span style="{size};background:{color};{rim}"></span>' if color else ""
