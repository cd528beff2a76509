"""A table is defined once and shown in four ways."""

import io
import math

from rich.console import Console

from lesson.report.table import Column, Table

TABLE = Table(
    [
        Column("strategy", "name", align="left"),
        Column(
            "time to 50 % (s)", lambda row: row["time_s"], lambda value: "–" if math.isnan(value) else f"{value:,.0f}"
        ),
    ],
    [{"name": "lesson_a|b", "time_s": 1200.0}, {"name": "<fedavg>", "time_s": math.nan}],
    title="Results, β = 1",
)


def test_terminal() -> None:
    output = io.StringIO()
    Console(file=output, width=80).print(TABLE.to_rich())
    lines = [line.split() for line in output.getvalue().splitlines() if line.strip()]
    assert ["lesson_a|b", "1,200"] in lines
    assert ["<fedavg>", "–"] in lines


def test_terminal_transposed() -> None:
    output = io.StringIO()
    Console(file=output, width=80).print(TABLE.transposed().to_rich())
    assert any(
        line.split() == ["time", "to", "50", "%", "(s)", "1,200", "–"] for line in output.getvalue().splitlines()
    )


def test_markdown() -> None:
    assert TABLE.to_markdown() == (
        "| strategy | time to 50 % (s) |\n| --- | ---: |\n| lesson_a\\|b | 1,200 |\n| <fedavg> | – |\n"
    )


def test_html_is_escaped() -> None:
    assert '<td style="text-align:left">&lt;fedavg&gt;</td>' in TABLE.to_html()


def test_latex_is_escaped() -> None:
    latex = TABLE.to_latex("tab:results")
    assert r"\caption{Results, $\beta$ = 1}" in latex
    assert r"lesson\_a$|$b & 1,200 \\" in latex
    assert Table([Column("x", str)], ["−1", "[2]"]).to_latex().count("$-$1 \\\\\n{[}2]") == 1
    assert r"$<$fedavg$>$ & -- \\" in latex
    assert r"time to 50 \% (s) \\" in latex
    assert r"\begin{tabular}{lr}" in latex


def test_page_sorts_by_numbers() -> None:
    data = TABLE.to_data()
    assert data["rows"] == [[["lesson_a|b", None], ["1,200", 1200.0]], [["<fedavg>", None], ["–", None]]]
