"""The outputs of `lesson contest`: figures, tables, the chosen settings, and a README."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lesson.core.files import write_whole
from lesson.experiments.contest.cases import cases_of
from lesson.experiments.contest.entries import FILE, Contest, Group
from lesson.experiments.contest.rules import MAX_POINTS
from lesson.experiments.missing import load_notes
from lesson.experiments.results import GUESSED, Results
from lesson.report.contest.figures import draw_curves, draw_times
from lesson.report.contest.levels import draw_levels
from lesson.report.contest.tables import group_table, settings_table
from lesson.report.files import FORMATS, save_figure
from lesson.report.words import markdown

_FIGURES = {
    False: {
        "accuracy": "test accuracy over simulated time, with 95 % bands",
        "times": "time to the last target, with 95 % intervals",
    },
    True: {"levels": "accuracy at the end, time to the first target (× where not every seed arrives), 95 % intervals"},
}
"""Captions of a group's figures, without and with levels."""


def write_contest(contest: Contest, figures: pd.DataFrame, results: Results, out: Path | str) -> Path:
    """Write all outputs and return the path of the README."""
    out = Path(out)
    parts = [_head(contest), _missing(contest, results)]
    for group in contest.groups:
        if len(rows := figures[figures["group"] == group.name] if len(figures) else figures):
            for name, figure in _draw(contest, group, rows, results).items():
                for suffix in FORMATS:
                    save_figure(figure, out / f"{name}-{group.name}{suffix}")
            tables = group_tables(contest, group, rows)
            write_whole(out / f"table-{group.name}.md", tables.encode())
            parts.append(_section(group, tables))
    write_whole(out / "table.csv", figures.to_csv(index=False).encode())
    if _is_tuned(contest):
        write_whole(out / "settings.md", _settings(contest, results).encode())
    write_whole(out / "entries.toml", contest.toml.encode())
    write_whole(out / "README.md", "\n".join(filter(None, [*parts, _provenance(out)])).encode())
    return out / "README.md"


def _draw(contest: Contest, group: Group, rows: pd.DataFrame, results: Results) -> dict[str, Figure]:
    """Return the figures of a group by name."""
    if group.levels:
        return {"levels": draw_levels(contest, group, rows)}
    return {"accuracy": draw_curves(contest, group, rows, results), "times": draw_times(contest, rows)}


def group_tables(contest: Contest, group: Group, rows: pd.DataFrame) -> str:
    """Return one Markdown table per β, each under a line that names the reference entry."""
    texts = []
    for beta in contest.rules.betas:
        at_beta = rows[rows["beta"] == beta]
        reference = at_beta["reference"].iloc[0]
        compared = f"; compared with {reference}" if reference else ""
        texts.append(f"**{group.title}, β = {beta:g}**{compared}\n\n{markdown(group_table(at_beta, contest.rules))}")
    return "\n".join(texts)


def missing_runs(contest: Contest, results: Results) -> dict[str, int]:
    """Return the number of missing runs by entry, for entries that have any."""
    missing = {
        entry.name: sum(case.num_missing(results) for case in cases_of([entry], contest.rules))
        for entry in contest.entries
    }
    return {name: count for name, count in missing.items() if count}


def _head(contest: Contest) -> str:
    rules = contest.rules
    seeds, won = "Every entry was run from", ""
    own = contest.toml != FILE.read_text(encoding="utf-8")
    command = "lesson contest --file entries.toml" if own else "lesson contest"
    if _is_tuned(contest):
        won = "[settings.md](settings.md): which settings won. "
        seeds = f"""Each entry was
tuned at each β over at most {MAX_POINTS} settings, by runs of {rules.tuning_s:,.0f} s from seed {rules.tuning_seed};
the best was run from"""
    return f"""# Strategies compared

{rules.dataset}, preset `released`, {rules.final_s:,.0f} simulated seconds, {len(rules.seeds)} seeds. {seeds}
seeds {", ".join(map(str, rules.seeds))}. Numbers are means over those ± half their 95 % intervals
by Student's t. A time is given where every seed reaches the target, else how many do. The time ratio is
the time to {rules.targets[-1]:.0%} over that of the entry compared with, the points are what the accuracy at the end is
above its; both are paired over seeds, and a ratio is given where every seed of both arrives.
docs/comparison.md tells how to read it.

{won}[entries.toml](entries.toml): who takes part, with what settings.
[table.csv](table.csv): all numbers. `runs.jsonl`: the evaluations of every run. Command: `{command}`.
"""


def _is_tuned(contest: Contest) -> bool:
    return any(len(entry.points) > 1 for entry in contest.entries)


def _missing(contest: Contest, results: Results) -> str:
    missing = missing_runs(contest, results)
    if not missing:
        return ""
    listed = ", ".join(f"{name} ({count})" for name, count in missing.items())
    return f"Incomplete entries, with the number of missing runs: {listed}.\n"


def _section(group: Group, tables: str) -> str:
    def figure(name: str, says: str) -> str:
        others = ", ".join(f"[{suffix[1:].upper()}]({name}-{group.name}{suffix})" for suffix in FORMATS[1:])
        return f"![{says}]({name}-{group.name}.png)\n\nAlso as {others}.\n"

    return "\n".join(
        [
            f"## {group.title}\n",
            *(figure(name, f"{group.title}: {says}") for name, says in _FIGURES[bool(group.levels)].items()),
            tables,
        ]
    )


def _settings(contest: Contest, results: Results) -> str:
    rules = contest.rules
    return f"""# Settings tried and chosen

Accuracy at {rules.tuning_s:,.0f} s from seed {rules.tuning_seed}, the mean of the last three evaluations; in bold what
was chosen, – what has not been run. A run that diverged counts as a guess, {GUESSED:.0%}.

{markdown(settings_table(contest, results))}"""


def _provenance(out: Path) -> str:
    """Return a table of the commands that executed the runs, from the notes stored with them; empty without notes."""
    notes = pd.DataFrame(load_notes(out))
    if notes.empty:
        return ""
    notes["commit"] = notes["commit"].fillna("–").str[:10]
    return f"## Made by\n\n{markdown(notes.assign(command=[f'`{line}`' for line in notes['command']]))}"
