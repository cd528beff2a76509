"""The docs show the verdicts and tables of experiments/paper; test_committed_results.py recomputes these."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from lesson.experiments.folder import StudyFolder
from lesson.experiments.measures import by_series
from lesson.paper.claims import CLAIMS
from lesson.paper.items import wanted_runs
from lesson.paper.reproduce import read_scale
from lesson.report.paper.items import items_in

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "paper" / "results"
PAGE = ROOT / "docs" / "explanation" / "reproduction.md"


@pytest.mark.slow
def test_every_run_of_the_paper_is_kept() -> None:
    scale = read_scale(FOLDER)
    assert scale is not None
    runs, wanted = StudyFolder(FOLDER).runs(), wanted_runs(items_in(FOLDER), scale)
    assert runs.keys() == wanted.keys()
    assert {len(series) for series in by_series(runs.values()).values()} == {scale.seeds}
    for name, run in runs.items():
        assert not wanted[name].differences(run.settings), name
        whole = run.settings.run.rounds is None or run.curve["round"].iloc[-1] > 0.9 * run.settings.run.rounds
        assert run.diverged or whole, f"{name} ends early"
        assert run.versions["hardware"]


def test_the_docs_show_the_verdicts() -> None:
    page, claims = PAGE.read_text(), json.loads((FOLDER / "claims.json").read_text())
    there = {item.name for item in items_in(FOLDER)}
    assert {claim["id"] for claim in claims} == {claim.id for claim in CLAIMS if set(claim.items) <= there}
    assert len(CLAIMS) == len({claim.id for claim in CLAIMS})
    shown = re.findall(r"^\| ([^|]+) \| \*\*(holds|fails|inconclusive|mixed)\*\* \|", page, re.MULTILINE)
    assert shown == [(claim["statement"] + " (added)" * claim["added"], claim["verdict"]) for claim in claims]
    told, papers = [], [claim for claim in claims if not claim["added"]]
    added = [claim for claim in claims if claim["added"]]
    for what, some in (("claims of the paper", papers), ("that we added", added)):
        counts = Counter(claim["verdict"] for claim in some)
        told.append(f"{len(some)} {what}: " + ", ".join(f"**{name}** {num}" for name, num in counts.most_common()))
    assert f"{'; '.join(told)}." in page
    counts = Counter(claim["verdict"] for claim in papers)
    assert "experiments/paper/results/fig5.png" in page
    readme = (ROOT / "README.md").read_text()
    decided = f"{counts['holds']} hold, {counts['fails']} fail, {counts['inconclusive']} are inconclusive"
    assert f"{len(papers)} claims, {decided}" in readme
    assert f"and {counts['mixed']} are mixed" in readme


@pytest.mark.parametrize("name", ["authors", "latencies", "choices", "margins", "sawtooth"])
def test_the_docs_show_the_tables(name: str) -> None:
    table = (FOLDER / f"{name}.md").read_text().rpartition("\n\n")[2]
    assert table.startswith("| ")
    assert table in PAGE.read_text()
