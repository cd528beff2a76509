"""The outputs of `lesson sweep --tune`: figures, tables, the chosen settings, the board, and a README."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lesson.core.files import write_whole
from lesson.experiments.folder import StudyFolder
from lesson.experiments.measures import MIN_SEEDS
from lesson.experiments.tuned.collapse import LOWEST
from lesson.experiments.tuned.design import TunedComparison
from lesson.experiments.tuned.entries import Group
from lesson.experiments.tuned.rules import Rules
from lesson.experiments.tuned.study import TunedStudy
from lesson.learn.metric import GUESSED, Metric
from lesson.report.files import save_figures
from lesson.report.metric_words import target_text
from lesson.report.page.board import BOARD, write_board
from lesson.report.tuned.figures import draw_curves, draw_times
from lesson.report.tuned.levels import draw_levels
from lesson.report.tuned.tables import at_ends, group_table, settings_table
from lesson.report.words import count, markdown

PNG = (".png",)
_COLLAPSES = f"""\
A run has collapsed if it diverged, or if its final accuracy is at most {LOWEST:.0%} (twice that of guessing among ten
classes) or at most half of its own best. Collapsed runs are counted after the name of their entry and reach no target;
accuracies are those of the other runs, without an interval if fewer than three are left."""


def write_tuned(study: TunedStudy, out: Path | str, suffixes: Sequence[str] = PNG) -> Path:
    """Write figures, tables, the board and a README to the folder of a tuned comparison; return the README's path."""
    out, design, table = Path(out), study.design, study.table()
    parts = [_head(design), _missing(study)]
    draw_tuned(study, out, suffixes)
    for group in design.groups:
        if len(rows := table[table["group"] == group.name] if len(table) else table):
            tables = group_tables(design, group, rows)
            write_whole(out / f"table-{group.name}.md", tables.encode())
            parts.append(_section(design, group, tables))
    write_whole(out / "table.csv", table.to_csv(index=False).encode())
    if _is_tuned(design):
        write_whole(out / "settings.md", _settings(study).encode())
    if len(table):
        write_board(study, out / BOARD)
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
    name = study.design.rules.metric
    return {name: draw_curves(study, group, rows), "times": draw_times(study.design, rows)}


def _captions(group: Group, metric: Metric) -> dict[str, str]:
    """Return the captions of a group's figures by name; the seeds and intervals are added to them."""
    if group.levels:
        marks = "open circles: some runs have collapsed, ×: all have"
        time = "time to the first target (× if not every seed reaches it)"
        return {"levels": f"final {metric.name} ({marks}) and {time}"}
    return {
        metric.name: f"test {metric.name} over simulated time, without collapsed runs",
        "times": "time to the last target",
    }


def group_tables(design: TunedComparison, group: Group, rows: pd.DataFrame) -> str:
    """Return one Markdown table per β, each under a line that names the reference entry."""
    texts = []
    for beta in design.rules.betas:
        at_beta = rows[rows["beta"] == beta]
        reference = at_beta["reference"].iloc[0]
        compared = f"; reference: {reference}" if reference else ""
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
    metric = rules.measured
    seeds, last = ", ".join(map(str, rules.seeds)), target_text(metric, rules.targets[-1])
    whose, minus = f"its final {metric.name}", "minus that of the reference"
    if not metric.higher_is_better:
        whose, minus = f"the final {metric.name}", "of the reference minus its own"
    tuning, chosen = "", ""
    own = design.toml != TunedComparison.load().toml
    command = "lesson sweep study.toml --tune" if own else "lesson sweep --tune"
    if _is_tuned(design):
        chosen = "[settings.md](settings.md): the settings tried and chosen. "
        tuning = f"""
Each entry was tuned at each β over at most {max(len(entry.points) for entry in design.entries)} settings, with runs of
{rules.tuning_s:,.0f} s and {_tuning_seeds(rules)}; the best settings were then run with these seeds."""
    return f"""# Strategies compared

Task {rules.dataset}, preset `released`, {rules.final_s:,.0f} simulated seconds, seeds {seeds}.{tuning}

{_numbers(rules)}
{_COLLAPSES if metric.is_share else "A run has collapsed if it diverged; it reaches no target."}
A time, upload count or energy is given if every seed reaches the target; otherwise the cell says how many seeds do.
The last two columns compare an entry with the reference, paired over seeds: the time ratio is its time to {last}
divided by that of the reference, given if both reach {last} with every seed; the {metric.name} gain is {whose}
{minus}. docs/explanation/comparison.md describes the method.

{chosen}[study.toml](study.toml): all entries with their settings.
[table.csv](table.csv): all numbers. `runs.jsonl.gz`: the evaluations of every run. Command: `{command}`.
"""


def _numbers(rules: Rules) -> str:
    """Return a sentence that says what the cells of the tables show."""
    number = len(rules.seeds)
    if number == 1:
        return "Numbers are those of the single seed."
    if number == 2:
        return "Cells show the values of both seeds."
    return f"Numbers are the mean ± 95 % confidence interval (Student's t) over {number} seeds."


def _is_tuned(design: TunedComparison) -> bool:
    return any(len(entry.points) > 1 for entry in design.entries)


def _missing(study: TunedStudy) -> str:
    missing = missing_runs(study)
    if not missing:
        return ""
    listed = ", ".join(f"{name} ({count})" for name, count in missing.items())
    return f"Incomplete entries and the number of their missing runs: {listed}.\n"


def _section(design: TunedComparison, group: Group, tables: str) -> str:
    number, captions = len(design.rules.seeds), _captions(group, design.rules.measured)
    over = (
        f"mean and 95 % confidence interval over {number} seeds"
        if number >= MIN_SEEDS
        else f"mean over {count(number, 'seed')}"
    )

    def figure(name: str, says: str) -> str:
        return f"![{says}]({name}-{group.name}.png)\n"

    return "\n".join(
        [
            f"## {group.title}\n",
            *(figure(name, f"{group.title}: {says}, {over}") for name, says in captions.items()),
            tables,
        ]
    )


def _settings(study: TunedStudy) -> str:
    rules, metric = study.design.rules, study.design.rules.measured
    lost = f"guessing, {GUESSED:.0%}" if metric.is_share else "the worst"
    title = "Accuracy" if metric.is_share else metric.name
    return f"""# Settings tried and chosen

{title} at {rules.tuning_s:,.0f} s with {_tuning_seeds(rules)} (mean of the last three evaluations). The chosen
settings are in bold; – means not run. A run that diverged counts as {lost}. Settings with fewer collapsed runs are
preferred.

{markdown(settings_table(study))}
{_ends(study)}"""


def _tuning_seeds(rules: Rules) -> str:
    seeds = ", ".join(map(str, rules.tuning_seeds))
    return f"seed {seeds}" if len(rules.tuning_seeds) == 1 else f"the mean over seeds {seeds}"


def _ends(study: TunedStudy) -> str:
    """Return which chosen values are at an end of their list, where better ones may lie beyond."""
    listed = {
        key: at_ends(study, key) for key in dict.fromkeys(key for entry in study.design.entries for key in entry.grid)
    }
    told = [
        f"- `{key}`: {sum(found.values())} of {len(found)} cases"
        + "".join(f"; {name}, β = {beta:g}" for (name, beta), at_end in found.items() if at_end)
        for key, found in listed.items()
        if found
    ]
    if not told:
        return ""
    return "\n".join(
        ["Chosen values at an end of a list of three or more; a better value may lie beyond:\n", *told, ""]
    )


def _provenance(out: Path) -> str:
    """Return a table of the commands that executed the runs, from study.toml; empty if there is none."""
    marker = StudyFolder(out).read()
    if marker is None or not marker.provenance:
        return ""
    rows = [made.model_dump() for made in marker.provenance]
    for row in rows:
        row |= {"command": f"`{row['command']}`", "commit": row["commit"][:10] or "–"}
    return f"## Commands that executed the runs\n\n{markdown(pd.DataFrame(rows))}"
