"""Published verdicts and tables are recomputed from the archived runs in experiments/paper."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from lesson.experiments.folder import StudyFolder
from lesson.experiments.measures import by_series
from lesson.experiments.run import Run
from lesson.paper.claims import CLAIMS, check_claims
from lesson.paper.items import NAMES, load_item, select_items, wanted_runs
from lesson.paper.scale import FULL
from lesson.paper.verdicts import Finding
from lesson.report.paper.items import claims_frame, item_table, verdict_words
from lesson.report.words import markdown

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "paper" / "results"


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return StudyFolder(FOLDER).runs()


@pytest.fixture(scope="module")
def findings(runs: dict[str, Run]) -> list[Finding]:
    return check_claims(list(runs.values()), NAMES, FULL)


def test_every_run_of_the_paper_is_kept_from_five_seeds(runs: dict[str, Run]) -> None:
    wanted = wanted_runs(select_items(["all"]), FULL)
    assert runs.keys() == wanted.keys()
    assert {len(series) for series in by_series(runs.values()).values()} == {5}
    for name, run in runs.items():
        assert not wanted[name].differences(run.settings), name
        whole = run.settings.run.rounds is None or run.curve["round"].iloc[-1] > 0.9 * run.settings.run.rounds
        assert run.diverged or whole, f"{name} ends early"
        assert run.versions["hardware"]


def test_verdicts_follow_from_the_kept_runs(findings: list[Finding]) -> None:
    assert len(findings) == len(CLAIMS) == len({claim.id for claim in CLAIMS})
    assert [finding.to_dict() for finding in findings] == json.loads((FOLDER / "claims.json").read_text())
    assert markdown(claims_frame(findings)) == (FOLDER / "claims.md").read_text()


def test_the_docs_show_the_verdicts(findings: list[Finding]) -> None:
    page = (ROOT / "docs" / "explanation" / "reproduction.md").read_text()
    shown = re.findall(r"^\| ([^|]+) \| (\*\*(?:holds|fails|inconclusive|mixed)\*\*) \|", page, re.MULTILINE)
    assert shown == [(finding.statement, verdict_words(finding)) for finding in findings]
    counts = Counter(finding.verdict for finding in findings)
    assert (
        f"{len(findings)} claims: {', '.join(f'**{name}** {number}' for name, number in counts.most_common())}." in page
    )
    assert "experiments/paper/results/fig5.png" in page


@pytest.mark.parametrize("name", ["authors", "latencies", "choices", "sawtooth"])
def test_tables_in_the_docs_follow_from_the_kept_runs(name: str, runs: dict[str, Run]) -> None:
    table = markdown(item_table(load_item(name), by_series(runs.values()), FULL))
    assert (FOLDER / f"{name}.md").read_text().endswith(f"\n\n{table}")
    assert table in (ROOT / "docs" / "explanation" / "reproduction.md").read_text()
