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
def test_outputs_for_tuned_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two data sets on one page; runs that several groups share count once."""
    folders = [str(RADIO / "mnist"), str(RADIO / "cifar10")]
    assert main(["report", *folders, "--latex", "--figures", "svg", "--out", str(tmp_path / "both")]) == 0
    data = data_of(tmp_path / "both" / "report.html")
    assert data["cards"] == []
    rows = data["table"]["rows"]
    assert rows
    table = (tmp_path / "both" / "table.tex").read_text()
    assert table.count(r"\\") == len(rows) + 1
    assert (tmp_path / "both" / "accuracy_time.svg").exists()
    assert main(["report", *folders]) == 2
    assert "--out" in capsys.readouterr().err


def test_page_of_the_paper(tmp_path: Path) -> None:
    assert main(["report", str(PAPER), "--out", str(tmp_path)]) == 0
    claims, shown = data_of(tmp_path / "report.html")["sections"]
    assert claims["items"][0]["table"]["rows"]
    commands = {item["command"] for item in shown["items"]}
    assert commands >= {f"lesson reproduce {name}" for name in set(NAMES) - set(ON_REQUEST)}


def test_reproduction_without_runs_has_a_page_and_figures(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "table1", "fig4", "--quick", "--out", str(out)]) == 0
    (out / "report.html").unlink()
    assert main(["report", str(out), "--figures", "pdf"]) == 0
    [section] = data_of(out / "report.html")["sections"]
    commands = [item["command"] for item in section["items"]]
    assert commands == ["lesson reproduce table1 --quick", "lesson reproduce fig4 --quick"]
    assert [path.name for path in out.glob("*.pdf")] == ["fig4.pdf"]
