"""`lesson report` on archived results and on a reproduction."""

from pathlib import Path

import pytest

from helpers.pages import data_of
from lesson.cli import main
from lesson.paper.items import NAMES, ON_REQUEST

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PAPER = EXPERIMENTS / "paper" / "results"
RADIO = EXPERIMENTS / "radio" / "results"


@pytest.mark.slow
def test_page_and_figures_of_tuned_results(tmp_path: Path) -> None:
    """Two data sets on one page, and the figures of one; runs that several groups share count once."""
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    assert main(["report", str(RADIO / "mnist"), str(RADIO / "cifar10"), "-o", str(page)]) == 0
    assert data_of(page)["verdict"]["rows"]
    assert main(["report", str(RADIO / "cifar10"), "--figures", str(figures), "--format", "svg"]) == 0
    committed = {path.stem for path in (RADIO / "cifar10").glob("*.png")}
    assert {path.name for path in figures.iterdir()} == {f"{name}.svg" for name in committed}


def test_page_of_the_paper(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(PAPER), "-o", str(page)]) == 0
    claims, shown = data_of(page)["sections"]
    assert claims["items"][0]["table"]["rows"]
    commands = {item["command"] for item in shown["items"]}
    assert commands >= {f"lesson reproduce {name}" for name in set(NAMES) - set(ON_REQUEST)}


def test_reproduction_without_runs_has_a_page_and_figures(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "table1", "fig4", "--quick", "--out", str(out)]) == 0
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    [section] = data_of(out / "report.html")["sections"]
    assert [item["command"] for item in section["items"]] == [
        "lesson reproduce table1 --quick",
        "lesson reproduce fig4 --quick",
    ]
    assert main(["report", str(out), "--figures", str(tmp_path / "figures")]) == 0
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["fig4.pdf"]
