"""Reports, replays and reproductions in a real browser: they load, draw all sections and can be used."""

import json
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from helpers.chromium import Browser
from helpers.flights import flight
from helpers.run_folders import RMSE, make_comparison_of, make_run
from helpers.small_tasks import tiny_task
from lesson import compare
from lesson.cli import main
from lesson.experiments.loading import load_study
from lesson.flight.fit import fit
from lesson.flight.outcomes import Candidate
from lesson.flight.replay import replay_fitted
from lesson.report.page.replay_page import replay_data, write_replay_page
from lesson.report.page.study_page import write_study_page
from lesson.report.paper.write import write_paper_page
from lesson.settings.settings import Settings

pytestmark = pytest.mark.slow
RESULTS = Path(__file__).parents[2] / "experiments" / "paper" / "results"
WINDOWS = pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
SECTIONS = "[...document.querySelectorAll('main > section')].map((one) => one.id)"
EMPTY_CHARTS = (
    "[...document.querySelectorAll('.chart')].filter((one) => "
    "!one.querySelector('.scatterlayer path, .barlayer path')).length"
)


def text(browser: Browser, selector: str = "main") -> str:
    return str(browser.script(f"document.querySelector({selector!r}).textContent"))


def texts(browser: Browser, selector: str) -> list[str]:
    return list(browser.script(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)"))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = Settings(
        fleet={"num_clients": 20},
        training={"batch_size": 2, "learning_rate": 0.5},
        data={"split": "iid"},
        run={"eval_every_s": 60.0, "time_budget_s": 900.0, "device": "cpu"},
    )
    folder = tmp_path_factory.mktemp("report")
    how = {"num_seeds": 3, "num_processes": 1, "task": tiny_task()}
    study = compare(["lesson", "fedavg"], settings=settings, out=folder / "runs", **how)
    write_study_page(study, folder / "report.html")
    return folder / "report.html"


@WINDOWS
def test_report_draws_every_section(quiet_browser: Browser, report: Path, width: int, dark: bool) -> None:
    browser = quiet_browser
    browser.open(report, width=width, height=844, dark=dark)
    browser.screenshot(f"report-{width}-{'dark' if dark else 'light'}")
    assert browser.script(SECTIONS) == [
        "what", "verdict", "accuracy", "deadline", "schedule", "latency", "participation", "fairness", "costs",
    ]  # fmt: skip
    assert browser.script(EMPTY_CHARTS) == 0
    assert browser.script("document.documentElement.scrollWidth") == width
    assert browser.script("[...document.querySelectorAll('.chart')].every((one) => one.ariaLabel.length > 30)")
    unnamed = (
        "[...document.querySelectorAll('button, input, select')]"
        ".filter((one) => !(one.ariaLabel || one.textContent.trim() || one.labels?.length))"
    )
    assert browser.script(f"{unnamed}.length") == 0


def test_controls_of_a_report(quiet_browser: Browser, report: Path) -> None:
    """Switch the axis, the strategy of the schedule and the theme; sort the table, open a row and copy its command."""
    browser = quiet_browser
    browser.open(report)
    axis, ink = text(browser, "#accuracy .xtitle"), "getComputedStyle(document.querySelector('#accuracy .xtitle')).fill"
    light, schedule = browser.script(ink), "document.querySelector('#schedule .chart').ariaLabel"
    browser.click("#accuracy .choice button:nth-of-type(2)")
    assert text(browser, "#accuracy .xtitle") != axis
    assert "lesson" in browser.script(schedule)
    browser.click("#schedule .choice button:nth-of-type(2)")
    assert "fedavg" in browser.script(schedule)
    for _ in range(2):  # as the system, light, dark
        browser.script("document.getElementById('theme').click()")
    browser.settle()
    assert browser.script(ink) != light
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    rows, order = "#verdict tbody th", "document.querySelector('#verdict thead th:last-child').ariaSort"
    first = texts(browser, rows)
    browser.click("#verdict thead th:last-child button")
    assert browser.script(order) == "ascending"
    ascending = texts(browser, rows)
    browser.press(Keys.ENTER)  # the button has kept the focus
    assert browser.script(order) == "descending"
    assert texts(browser, rows) == ascending[::-1]
    assert first in (ascending, ascending[::-1])
    browser.click("#verdict tbody button.open")
    assert "time_budget_s = 900.0" in text(browser, "#verdict tr.more")
    browser.click("#verdict .quoted:last-child button")
    command = browser.script("navigator.clipboard.readText()")
    assert command in browser.script("Page.data.rows.map((row) => row.command)")


def test_report_of_a_real_time_run_with_hostile_names(tmp_path: Path, quiet_browser: Browser) -> None:
    make_run(tmp_path / "run", joules=None)
    names = ["<b>cat</b>", *(f"class {place}" for place in range(1, 10))]
    for file, change in (("summary.json", {"clock": "wall"}), ("clients.json", {"class_names": names})):
        path = tmp_path / "run" / file
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    write_study_page(load_study([tmp_path / "run"]), tmp_path / "report.html")
    quiet_browser.open(tmp_path / "report.html")
    ticks = "document.querySelector('#fairness .chart').querySelectorAll('.xtick text')"
    assert quiet_browser.script(f"[...{ticks}].map((one) => one.textContent)") == names
    assert "simulated" not in text(quiet_browser)
    assert "kJ" not in text(quiet_browser, "#costs")


def test_report_of_a_regression(tmp_path: Path, quiet_browser: Browser) -> None:
    make_comparison_of(tmp_path / "runs", RMSE, (6.0, 5.0, 4.0, 3.0, 2.0, 1.5), worse=1.0, step=0.1)
    write_study_page(load_study([tmp_path / "runs"]), tmp_path / "report.html")
    quiet_browser.open(tmp_path / "report.html")
    assert quiet_browser.script(SECTIONS) == ["what", "verdict", "metric", "deadline", "latency", "costs"]
    assert quiet_browser.script(EMPTY_CHARTS) == 0
    ticks = texts(quiet_browser, "#metric .ytick")
    assert "6" in ticks
    assert "%" not in "".join(ticks)
    assert "accura" not in text(quiet_browser).lower()


@WINDOWS
def test_replay(quiet_browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    fitted = fit(flight(tmp_path / "flight.jsonl", [[4.0, 9.0, 19.0], [4.5, 9.5, -2.0]] * 10))
    candidates = [Candidate("lesson", 10.0), Candidate("fedavg", 10.0), Candidate("fedcs", 1.0)]
    result = replay_fitted(fitted, candidates, num_replicates=5)
    page = tmp_path / "replay.html"
    write_replay_page(page, result, replay_data(result) | {"notes": result.notes, "trained": None}, "lesson replay f")
    quiet_browser.open(page, width=width, height=844, dark=dark)
    assert quiet_browser.script(SECTIONS) == ["advice", "strategies", "clients", "notes"]
    assert texts(quiet_browser, "#strategies tbody th") == ["recorded: fedavg", "lesson, 10 s", "fedavg"]
    assert "fedcs, 1 s" in text(quiet_browser, "#notes")
    assert "LessonStrategy(deadline_s=10)" in text(quiet_browser, "#advice")
    assert quiet_browser.script(EMPTY_CHARTS) == 0
    assert quiet_browser.script("document.documentElement.scrollWidth") == width


def test_reproduction(quiet_browser: Browser, tmp_path: Path) -> None:
    write_paper_page(load_study([RESULTS]), RESULTS, tmp_path / "paper.html")
    quiet_browser.open(tmp_path / "paper.html")
    assert len(texts(quiet_browser, "#section-1 tbody tr")) > 30
    quiet_browser.script("document.querySelectorAll('img').forEach((one) => one.loading = 'eager')")
    quiet_browser.script("Promise.all([...document.images].map((one) => one.decode()))")
    assert quiet_browser.script("[...document.images].every((one) => one.naturalWidth > 100)")


def test_simulated_schedules(quiet_browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "--strategies", "fedavg,lesson", "--versions", "5", "--html", "page.html"]) == 0
    quiet_browser.open(tmp_path / "page.html")
    assert quiet_browser.script(SECTIONS) == ["section-1"]
    assert texts(quiet_browser, "tbody th") == ["fedavg", "lesson"]
