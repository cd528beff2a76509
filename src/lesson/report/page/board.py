"""The board of a tuned comparison, board.html: all entries in a sortable table, their curves, and how to check them."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

from lesson.experiments.measures import MIN_SEEDS, means
from lesson.experiments.naming import in_words
from lesson.experiments.run import Run
from lesson.experiments.tuned.cases import Case
from lesson.experiments.tuned.collapse import has_collapsed
from lesson.experiments.tuned.entries import FIXED
from lesson.experiments.tuned.measures import COLLAPSED, accuracy_of_others, to_targets, value_names
from lesson.experiments.tuned.rerun import SCHEDULE, digest
from lesson.experiments.tuned.study import TunedStudy
from lesson.report.bands import mean_band
from lesson.report.metric_words import target_text
from lesson.report.page.document import write_document
from lesson.report.tuned.figures import case_points

BOARD = "board.html"
"""Name of the page in the folder of a tuned comparison."""
MAX_POINTS = 120
"""Most points of a curve."""
OTHERS = "accuracy_others"


def write_board(study: TunedStudy, path: Path | str) -> None:
    """Atomically write the board of a tuned comparison."""
    write_document(
        path, f"LESSON: board of strategies on {study.design.rules.dataset}", ["board.js"], board_data(study)
    )


def board_data(study: TunedStudy) -> dict[str, Any]:
    """Return all data of the board. Every number follows from the archived runs; the page only sorts and draws."""
    rules, metric = study.design.rules, study.design.rules.measured
    cases = {(case.entry.name, case.beta): case for case in study.design.cases}
    table = study.table().to_dict("records")
    return {
        "dataset": rules.dataset,
        "final_s": rules.final_s,
        "seeds": len(rules.seeds),
        "min_seeds": MIN_SEEDS,
        "betas": list(rules.betas),
        "targets": [{"value": target, "name": target_text(metric, target, "\u00a0")} for target in rules.targets],
        "metric": {"name": metric.name, "is_share": metric.is_share, "higher_is_better": metric.higher_is_better},
        "groups": [{"name": group.name, "title": group.title} for group in study.design.groups],
        "made_with": _made_with([run for row in table for run in cases[row["entry"], row["beta"]].made(study.done)]),
        "rows": [
            _row({str(name): one for name, one in row.items()}, cases[row["entry"], row["beta"]], study)
            for row in table
        ],
    }


def _row(row: dict[str, Any], case: Case, study: TunedStudy) -> dict[str, Any]:
    """Return a row of the board; `row` is that of the study's table."""
    rules, runs, last = case.rules, case.made(study.done), value_names(case.rules)[-1]
    kept = pd.DataFrame({OTHERS: [accuracy_of_others(run) for run in runs if not has_collapsed(run, rules.final_s)]})
    others = means(kept, [OTHERS], [])
    custom = _module_of(runs[0])
    verify = f"--verify {shlex.quote(case.entry.name)} --beta {in_words(case.beta)}"
    return {
        "entry": case.entry.name,
        "group": case.entry.group,
        "beta": case.beta,
        "settings": row["settings"],
        "value": row[last],
        "half": row[f"{last}_ci95"],
        "seeds": row["seeds"],
        "collapsed": row[COLLAPSED],
        "diverged": row["diverged"],
        "others": others[OTHERS],
        "others_half": others[f"{OTHERS}_ci95"],
        "costs": to_targets(runs, rules),
        "curve": mean_band(case_points(case, study.done), rules.measured, MAX_POINTS).to_dict(rules.measured),
        "toml": _toml(case, runs[0], study),
        "toml_seed": runs[0].seed,
        "command": f"lesson sweep {'FOLDER/' if custom else ''}study.toml --tune {verify}",
        "where": f"where Python finds {custom}, with FOLDER the folder of this page"
        if custom
        else "in the folder of this page",
        "schedule_digest": digest(runs, SCHEDULE),
        "digest": digest(runs),
    }


def _module_of(run: Run) -> str:
    """Return the file of a custom strategy; an empty string for a built-in one."""
    module, is_custom, _ = run.settings.strategy.name.partition(":")
    return f"{module.replace('.', '/')}.py" if is_custom else ""


def _toml(case: Case, run: Run, study: TunedStudy) -> str:
    """Return a settings file of a final run: what the entry fixes, what tuning chose, and what the rules set.

    It has all settings that differ from the preset, except for device and precision.
    """
    tables = {section: dict(getattr(case.entry, section)) for section in FIXED} | {"run": {}}
    tables["strategy"] = {"name": run.settings.strategy.name} | tables["strategy"]
    chosen, limits = case.chosen(study.done) or {}, case.rules.limits(run.seed)
    for key, value in (chosen | limits | {"data.beta": case.beta}).items():
        section, _, name = key.partition(".")
        tables[section][name] = value
    return tomli_w.dumps({"preset": case.entry.preset} | {name: values for name, values in tables.items() if values})


def _made_with(runs: Sequence[Run]) -> list[str]:
    """Return hardware and versions of the runs, without duplicates."""
    kept = ("hardware", "torch", "numpy", "python", "lesson")
    told = (", ".join(f"{name} {run.versions[name]}" for name in kept if name in run.versions) for run in runs)
    return list(dict.fromkeys(text.removeprefix("hardware ") for text in told if text))
