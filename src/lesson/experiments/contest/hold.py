"""Executes a contest in a folder: tuning runs first, then final runs; existing results are kept."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from lesson.core.errors import InputError, RunStoppedError
from lesson.core.files import write_whole
from lesson.experiments.contest.cases import Case, Runs
from lesson.experiments.contest.rules import Rules
from lesson.experiments.missing import not_held
from lesson.experiments.results import Results
from lesson.experiments.study import COMPARED, RULES, RUNS, SCALE, check_for_many
from lesson.runs.folder import RunFolder, read_kept


def claim_folder(out: Path | str, rules: Rules) -> None:
    """Create or check the folder of a contest with these rules; raise InputError if it holds something else."""
    out = Path(out)
    check_for_many(out)
    path = out / RULES
    if not path.exists() and any((out / name).exists() for name in (RUNS, SCALE, COMPARED)):
        raise InputError(f"{out} holds runs that are not of a contest; name another folder with --out")
    there = read_kept(path, rules.to_dict(), TypeAdapter(dict[str, Any]), "name another folder with --out")
    for name, value in rules.to_dict().items():
        if there.get(name) != value:
            kept = f"{name} = {there.get(name)}, here it is {value}"
            raise InputError(
                f"{out} holds a contest by other rules ({kept}); its own are in --file {out / 'entries.toml'}, "
                "or name another folder with --out"
            )
    RunFolder(out).make()
    write_whole(path, (json.dumps(rules.to_dict(), indent=2) + "\n").encode())


def hold(cases: Sequence[Case], out: Path | str, make: Callable[[Runs], Results]) -> tuple[Results, str]:
    """Execute the missing runs with `make`; return all results of the folder, and why runs failed ("" if none did).

    Final runs of tuned cases are executed even if other cases are not tuned yet.
    """
    results, failed = _make({name: one for case in cases for name, one in case.tuning().items()}, out, make)
    finals = {name: one for case in cases for name, one in (case.finals(results) or {}).items()}
    results, failed_later = _make(finals, out, make)
    return results, "; ".join(filter(None, [failed, failed_later]))


def _make(wanted: Runs, out: Path | str, make: Callable[[Runs], Results]) -> tuple[Results, str]:
    try:
        return make(not_held(wanted, out)), ""
    except RunStoppedError as error:
        return Results.load(out), str(error)
