"""`lesson report` on the results in experiments/, which are archived, and on parts of studies."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lesson.cli import main
from lesson.paper.items import NAMES, ON_REQUEST

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
RESULTS = sorted(path.parent for path in EXPERIMENTS.rglob("study.toml"))
PAPER = EXPERIMENTS / "paper" / "results"
TUNED = [path for path in RESULTS if path != PAPER]


def data_of(page: Path) -> dict[str, Any]:
    """Return the data inside a page."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def test_all_results_are_found() -> None:
    assert {path.relative_to(EXPERIMENTS).parts[0] for path in RESULTS} == {
        path.parent.name for path in EXPERIMENTS.glob("*/results")
    }


@pytest.mark.slow
def test_the_page_and_figures_of_tuned_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one study; tests/experiments/test_committed_results.py draws all of them."""
    folder, page = EXPERIMENTS / "radio" / "results" / "cifar10", tmp_path / "page.html"
    figures = ["--figures", str(tmp_path / "out"), "--format", "svg"]
    assert main(["report", str(folder), "-o", str(page), *figures]) == 0
    names = sorted(path.stem for path in folder.glob("*.png"))
    out, err = capsys.readouterr()
    *drawn, last = out.splitlines()
    assert (sorted(drawn), last, err) == (
        [f"figure: {tmp_path / 'out' / name}.svg" for name in names],
        f"report: {page}",
        "",
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"{name}.svg" for name in names]
    assert data_of(page)["verdict"]["rows"]


def test_the_page_of_the_paper(tmp_path: Path) -> None:
    assert main(["report", str(PAPER), "-o", str(tmp_path / "page.html")]) == 0
    data = data_of(tmp_path / "page.html")
    there = [name for name in NAMES if (PAPER / f"{name}.toml").exists()]
    assert [item["name"] for item in data["items"]] == there
    assert set(NAMES) - set(ON_REQUEST) <= set(there)
    assert data["claims"] == json.loads((PAPER / "claims.json").read_text())


@pytest.mark.slow
def test_tuned_results_of_two_data_sets_on_one_page(tmp_path: Path) -> None:
    """Each has runs that several groups share; they count once."""
    folders = [str(EXPERIMENTS / "radio" / "results" / name) for name in ("mnist", "cifar10")]
    assert main(["report", *folders, "-o", str(tmp_path / "page.html")]) == 0
    assert "mnist" in data_of(tmp_path / "page.html")["what"]


def test_results_of_the_paper_are_reported_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(PAPER), str(TUNED[0]), "-o", str(tmp_path / "page.html")]) == 2
    assert capsys.readouterr().err == f"lesson: {PAPER} holds a reproduction of the paper and must be the only folder\n"


def test_a_reproduction_without_runs_has_a_page_and_figures(tmp_path: Path) -> None:
    """Tables 1 and 2 and figures 2 to 4 are computed from fleets and data alone."""
    out = tmp_path / "out"
    assert main(["reproduce", "table1", "fig4", "--quick", "--out", str(out)]) == 0
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert [item["name"] for item in data_of(out / "report.html")["items"]] == ["table1", "fig4"]
    assert main(["report", str(out), "--figures", str(tmp_path / "figures")]) == 0
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["fig4.pdf"]
