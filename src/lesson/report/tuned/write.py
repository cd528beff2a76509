"""The outputs of `lesson sweep --tune`: figures, tables, the chosen settings, and a README."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lesson.core.files import write_whole
from lesson.experiments.folder import StudyFolder
from lesson.experiments.run import GUESSED
from lesson.experiments.tuned.design import TunedComparison
from lesson.experiments.tuned.entries import Group
from lesson.experiments.tuned.rules import MAX_POINTS
from lesson.experiments.tuned.study import TunedStudy
from lesson.report.files import save_figures
from lesson.report.tuned.figures import draw_curves, draw_times
from lesson.report.tuned.levels import draw_levels
from lesson.report.tuned.tables import group_table, settings_table
from lesson.report.words import markdown

PNG = (".png",)
_FIGURES = {
    False: {
        "accuracy": "test accuracy over simulated time, with 95 % bands",
        "times": "time to the last target, with 95 % intervals",
    },
    True: {"levels": "accuracy at the end, time to the first target (× where not every seed arrives), 95 % intervals"},
}
"""Captions of a group's figures, without and with levels."""


def write_tuned(study: TunedStudy, out: Path | str, suffixes: Sequence[str] = PNG) -> Path:
    """Write figures, tables and a README to the folder of a tuned comparison, and return the path of the README."""
    out, design, table = Path(out), study.design, study.table()
    parts = [_head(design), _missing(study)]
    draw_tuned(study, out, suffixes)
    for group in design.groups:
        if len(rows := table[table["group"] == group.name] if len(table) else table):
            tables = group_tables(design, group, rows)
            write_whole(out / f"table-{group.name}.md", tables.encode())
            parts.append(_section(group, tables))
    write_whole(out / "table.csv", table.to_csv(index=False).encode())
    if _is_tuned(design):
        write_whole(out / "settings.md", _settings(study).encode())
    write_whole(out / "README.md", "\n".join(filter(None, [*parts, _provenance(out)])).encode())
    return out / "README.md"


def draw_tuned(study: TunedStudy, out: Path | str, suffixes: Sequence[str] = PNG) -> list[Path]:
    """Draw the figures of every group that has complete entries, and return their paths."""
    table, figures = study.table(), dict[str, Figure]()
    for group in study.design.groups:
        if len(rows := table[table["group"] == group.name] if len(table) else table):
            figures |= {f"{name}-{group.name}": figure for name, figure in _draw(study, group, rows).items()}
    return save_figures(figures, out, suffixes)


def _draw(study: TunedStudy, group: Group, rows: pd.DataFrame) -> dict[str, Figure]:
    """Return the figures of a group by name."""
    if group.levels:
        return {"levels": draw_levels(study.design, group, rows)}
    return {"accuracy": draw_curves(study, group, rows), "times": draw_times(study.design, rows)}


def group_tables(design: TunedComparison, group: Group, rows: pd.DataFrame) -> str:
    """Return one Markdown table per β, each under a line that names the reference entry."""
    texts = []
    for beta in design.rules.betas:
        at_beta = rows[rows["beta"] == beta]
        reference = at_beta["reference"].iloc[0]
        compared = f"; compared with {reference}" if reference else ""
        texts.append(f"**{group.title}, β = {beta:g}**{compared}\n\n{markdown(group_table(at_beta, design.rules))}")
    return "\n".join(texts)


def missing_runs(study: TunedStudy) -> dict[str, int]:
    """Return the number of missing runs by entry, for entries that have any."""
    missing = Counter[str]()
    for case in study.design.cases:
        missing[case.entry.name] += case.num_missing(study.done)
    return {name: count for name, count in missing.items() if count}


def _head(design: TunedComparison) -> str:
    rules = design.rules
    seeds, won = "Every entry was run from", ""
    own = design.toml != TunedComparison.load().toml
    command = "lesson sweep study.toml --tune" if own else "lesson sweep --tune"
    if _is_tuned(design):
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
docs/explanation/comparison.md tells how to read it.

{won}[study.toml](study.toml): who takes part, with what settings.
[table.csv](table.csv): all numbers. `runs.jsonl.gz`: the evaluations of every run. Command: `{command}`.
"""


def _is_tuned(design: TunedComparison) -> bool:
    return any(len(entry.points) > 1 for entry in design.entries)


def _missing(study: TunedStudy) -> str:
    missing = missing_runs(study)
    if not missing:
        return ""
    listed = ", ".join(f"{name} ({count})" for name, count in missing.items())
    return f"Incomplete entries, with the number of missing runs: {listed}.\n"


def _section(group: Group, tables: str) -> str:
    def figure(name: str, says: str) -> str:
        return f"![{says}]({name}-{group.name}.png)\n"

    return "\n".join(
        [
            f"## {group.title}\n",
            *(figure(name, f"{group.title}: {says}") for name, says in _FIGURES[bool(group.levels)].items()),
            tables,
        ]
    )


def _settings(study: TunedStudy) -> str:
    rules = study.design.rules
    return f"""# Settings tried and chosen

Accuracy at {rules.tuning_s:,.0f} s from seed {rules.tuning_seed}, the mean of the last three evaluations; in bold what
was chosen, – what has not been run. A run that diverged counts as a guess, {GUESSED:.0%}.

{markdown(settings_table(study))}"""


def _provenance(out: Path) -> str:
    """Return a table of the commands that executed the runs, from study.toml; empty if there is none."""
    marker = StudyFolder(out).read()
    if marker is None or not marker.provenance:
        return ""
    rows = [made.model_dump() for made in marker.provenance]
    for row in rows:
        row |= {"command": f"`{row['command']}`", "commit": row["commit"][:10] or "–"}
    return f"## Made by\n\n{markdown(pd.DataFrame(rows))}"
