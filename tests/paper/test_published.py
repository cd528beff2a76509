"""Published verdicts and tables are recomputed from the archived runs in results/paper."""

import json
import re
from pathlib import Path

import pytest

from lesson.experiments.results import Results
from lesson.paper.claims import CLAIMS, check_claims
from lesson.paper.items import NAMES, load_item, select_items, wanted_runs
from lesson.paper.reproduce import missing_runs
from lesson.paper.scale import FULL
from lesson.paper.verdicts import Finding
from lesson.report.paper.items import claims_frame, item_table, verdict_words
from lesson.report.words import markdown

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "paper"


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.load(FOLDER)


@pytest.fixture(scope="module")
def findings(results: Results) -> list[Finding]:
    return check_claims(results, NAMES, FULL)


def test_every_run_of_the_paper_is_kept_from_five_seeds(results: Results) -> None:
    assert not missing_runs(select_items(["all"]), FOLDER, FULL)
    assert results.runs.keys() == wanted_runs(select_items(["all"]), FULL).keys()
    assert {len(runs) for runs in results.values()} == {5}
    for name, run in results.runs.items():
        whole = run.settings.run.rounds is None or run.curve["round"].iloc[-1] > 0.9 * run.settings.run.rounds
        assert run.stopped or whole, f"{name} ends early"
        assert run.versions["hardware"]


def test_verdicts_follow_from_the_kept_runs(findings: list[Finding]) -> None:
    assert len(findings) == len(CLAIMS) == len({claim.id for claim in CLAIMS})
    assert [finding.to_dict() for finding in findings] == json.loads((FOLDER / "claims.json").read_text())
    assert markdown(claims_frame(findings)) == (FOLDER / "claims.md").read_text()


def test_the_readme_shows_the_verdicts(findings: list[Finding]) -> None:
    readme = (ROOT / "README.md").read_text()
    shown = re.findall(r"^\| ([^|]+) \| (\*\*(?:holds|holds in part|does not hold)\*\*[^|]*) \|", readme, re.MULTILINE)
    assert shown == [(finding.statement, verdict_words(finding)) for finding in findings]
    assert "results/paper/fig5.png" in readme


@pytest.mark.parametrize("name", ["authors", "latencies", "choices", "sawtooth"])
def test_tables_in_the_docs_follow_from_the_kept_runs(name: str, results: Results) -> None:
    table = markdown(item_table(load_item(name), results, FULL))
    assert (FOLDER / f"{name}.md").read_text().endswith(f"\n\n{table}")
    assert table in (ROOT / "docs" / "reproduction.md").read_text()
