"""The file tuning.md of a tuned comparison: its results, and the settings that tuning tried."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from lesson.core.files import write_whole
from lesson.experiments.run import Run
from lesson.experiments.tuning.file import Group
from lesson.experiments.tuning.study import TunedStudy
from lesson.experiments.tuning.tune import Score
from lesson.report.page.document import Item, Section
from lesson.report.results import results_table
from lesson.report.table import Column, Table
from lesson.report.words import metric_text

TUNING = "tuning.md"
Key = tuple[str, str, float]
"""An entry, settings, and β."""


def write_tuning(study: TunedStudy) -> None:
    """Write tuning.md to the study's folder."""
    assert study.path is not None
    table, parts = results_table(study), list[str]()
    by_beta = sorted(table.rows, key=lambda row: row.settings.data.beta)
    for group in study.groups_shown:
        if rows := [row for row in by_beta if row.runs[0].labels["group"] == group.name]:
            parts += [f"## {group.title}", replace(table, rows=rows).to_markdown()]
    if study.tuning:
        section = tuning_section(study)
        parts += [f"## {section.title}", section.lead]
        for item in section.items:
            parts += [f"### {item.heading}", item.table.to_markdown() if item.table else ""]
    text = "\n\n".join(part.strip() for part in [f"# {table.title}", *parts])
    write_whole(study.path / TUNING, f"{text}\n".encode())


def tuning_section(study: TunedStudy) -> Section:
    """Return a section with a table per group of the settings that tuning tried."""
    rules = study.rules
    seeds = f"seed{'s' if len(rules.tuning_seeds) > 1 else ''} {', '.join(map(str, rules.tuning_seeds))}"
    lead = f"Mean {rules.metric} at {rules.tuning_s:,.0f} s with {seeds}; the final runs have other seeds."
    if ends := _at_ends(study):
        lead += f" These chosen values are at an end of their lists, so better ones may lie beyond: {'; '.join(ends)}."
    items = [Item(group.title, table=tried_table(study, group)) for group in study.groups_shown]
    return Section("Settings that tuning tried", lead, [item for item in items if item.table and item.table.rows])


def tried_table(study: TunedStudy, group: Group) -> Table:
    """Return one row per entry and settings of a group, with the tuning result at each β; chosen ones are marked."""
    runs = _by_key([run for run in study.tuning if run.labels["group"] == group.name])
    chosen = _by_key(study.runs)

    def result(beta: float, row: tuple[str, str]) -> str:
        key = (*row, beta)
        if key not in runs:
            return "–"
        score = Score.of(runs[key], study.rules)
        text = metric_text(study.rules.measured, score.value)
        if score.diverged == score.seeds:
            text = "diverged"
        elif score.collapsed:
            text += " (collapsed)" if score.seeds == 1 else f" ({score.collapsed} of {score.seeds} collapsed)"
        return f"{text}, chosen" if key in chosen else text

    columns = [
        Column("entry", lambda row: row[0], align="left"),
        Column("settings", lambda row: row[1], align="left"),
        *(Column(f"β = {beta:g}", partial(result, beta)) for beta in study.rules.betas),
    ]
    return Table(columns, list(dict.fromkeys(key[:2] for key in runs)))


def _by_key(runs: Sequence[Run]) -> Mapping[Key, list[Run]]:
    found: dict[Key, list[Run]] = {}
    for run in runs:
        found.setdefault((run.labels["entry"], run.labels["settings"], run.settings.data.beta), []).append(run)
    return found


def _at_ends(study: TunedStudy) -> list[str]:
    """Describe the chosen values that are the smallest or largest of at least three numbers."""
    tried: dict[tuple[str, str], set[float]] = {}
    for entry, settings, _ in _by_key(study.tuning):
        for name, number in _numbers(settings).items():
            tried.setdefault((entry, name), set()).add(number)
    found: dict[str, list[str]] = {}
    for entry, settings, beta in _by_key(study.runs):
        for name, number in _numbers(settings).items():
            values = tried.get((entry, name), set())
            if len(values) >= 3 and number in (min(values), max(values)):
                found.setdefault(f"{name} = {number:g} of {entry}", []).append(f"{beta:g}")
    return [f"{what} (β = {' and '.join(betas)})" for what, betas in found.items()]


def _numbers(settings: str) -> dict[str, float]:
    """Return the numeric settings in the label of a run."""
    found = {}
    for part in settings.split(", "):
        name, _, value = part.partition(" = ")
        try:
            found[name] = float(value)
        except ValueError:
            continue
    return found
