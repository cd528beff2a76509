"""The report in a real browser: it loads, draws all of its sections and can be used."""

import json
import re
from pathlib import Path

import pytest

from helpers.chromium import Browser
from helpers.run_folders import RMSE, make_run, make_run_of
from helpers.small_tasks import tiny_task
from lesson import compare
from lesson.experiments.loading import load_study
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.report.page.paper_page import write_paper_page
from lesson.report.page.study_page import write_study_page
from lesson.settings.settings import Settings

pytestmark = pytest.mark.slow
RESULTS = Path(__file__).parent.parent.parent / "experiments" / "paper" / "results"
SECTIONS = [
    "what",
    "verdict",
    "accuracy",
    "deadline",
    "schedule",
    "latency",
    "participation",
    "fairness",
    "costs",
    "settings",
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    write_study_page(Study(study.runs[:1]), folder / "single.html")
    return folder / "report.html"


@pytest.fixture
def opened(quiet_browser: Browser, page: Path) -> Browser:
    """The browser with the page open; it is loaded again only if another page or window size came in between."""
    if quiet_browser.script("[location.href, innerWidth]") != [page.as_uri(), 1280]:
        quiet_browser.open(page)
    return quiet_browser


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_every_section_is_there_and_drawn(quiet_browser: Browser, page: Path, width: int, dark: bool) -> None:
    quiet_browser.open(page, width=width, height=844, dark=dark)
    quiet_browser.screenshot(f"report-{width}-{'dark' if dark else 'light'}")
    assert quiet_browser.script("[...document.querySelectorAll('main > section')].map((one) => one.id)") == SECTIONS
    empty = (
        "[...document.querySelectorAll('.chart')].filter((one) => "
        "!one.querySelector('.scatterlayer path, .barlayer path')).length"
    )
    assert quiet_browser.script(empty) == 0
    assert quiet_browser.script("document.querySelectorAll('.chart').length") >= 10
    assert quiet_browser.script("document.documentElement.scrollWidth") == width
    wide = "[...document.querySelectorAll('.chart .main-svg')].filter((one) => one.getBoundingClientRect().right > %d)"
    assert quiet_browser.script(f"{wide % width}.length") == 0
    proposal = str(quiet_browser.script("document.querySelector('#deadline .answer').textContent"))
    assert re.match(r"Start with [\d.]+ s\. ", proposal)
    assert "–" not in proposal


@pytest.mark.parametrize(("joules", "num_charts"), [(50.0, 2), (None, 1)])
def test_costs_have_no_energy_where_nobody_measured_it(
    quiet_browser: Browser, tmp_path: Path, joules: float | None, num_charts: int
) -> None:
    make_run(tmp_path / "run", joules=joules)
    write_study_page(Study([Run.load(tmp_path / "run")]), tmp_path / "report.html")
    quiet_browser.open(tmp_path / "report.html")
    assert quiet_browser.script("document.querySelectorAll('#costs .chart').length") == num_charts
    told = str(quiet_browser.script("document.querySelector('#costs').textContent"))
    assert ("kJ" in told) == (joules is not None)


def test_the_page_of_a_run_on_the_wall_clock_does_not_say_simulated(tmp_path: Path, quiet_browser: Browser) -> None:
    make_run(tmp_path / "run")
    summary = tmp_path / "run" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"clock": "wall"}))
    write_study_page(Study([Run.load(tmp_path / "run")]), tmp_path / "report.html")
    quiet_browser.open(tmp_path / "report.html")
    told = str(quiet_browser.script("document.querySelector('main').textContent"))
    assert "simulated" not in told
    assert "All times are measured on real clients." in told
    assert "over elapsed time" in told


def test_the_page_of_a_regression_has_its_metric_and_no_classes(tmp_path: Path, quiet_browser: Browser) -> None:
    for name, more in (("lesson", 0.0), ("fedavg", 1.0)):
        for seed in range(3):
            values = [value + more + 0.1 * seed for value in (6.0, 5.0, 4.0, 3.0, 2.0, 1.5)]
            make_run_of(
                tmp_path / "runs" / f"{name}-seed{seed}", RMSE, values, strategy={"name": name}, run={"seed": seed}
            )
    write_study_page(load_study([tmp_path / "runs"]), tmp_path / "report.html")
    quiet_browser.open(tmp_path / "report.html")
    quiet_browser.screenshot("report-rmse")
    shown = quiet_browser.script("[...document.querySelectorAll('main > section')].map((one) => one.id)")
    assert shown == ["what", "verdict", "metric", "deadline", "latency", "costs", "settings"]
    read = "[...document.querySelectorAll('#metric .ytitle, #metric h2')].map((one) => one.textContent)"
    assert quiet_browser.script(read) == ["rmse", "test rmse"]
    ticks = "[...document.querySelectorAll('#metric .ytick')].map((one) => one.textContent)"
    assert "6" in quiet_browser.script(ticks)
    assert "%" not in "".join(quiet_browser.script(ticks))
    assert quiet_browser.script("document.querySelector('#metric .chart').ariaLabel").endswith(
        ": fedavg ends at 2.6, lesson ends at 1.6."
    )
    cards = "[...document.querySelectorAll('#verdict .card .label')].map((one) => one.textContent)"
    assert quiet_browser.script(cards)[:2] == ["Lowest rmse", "Shortest time to rmse 4"]
    choices = "[...document.querySelectorAll('#costs .choice button')].map((one) => one.textContent)"
    assert quiet_browser.script(choices) == ["rmse 4"]
    told = str(quiet_browser.script("document.querySelector('main').textContent"))
    assert "until a target rmse is reached" in told
    assert "accura" not in told.lower()


def test_classes_are_shown_by_name(tmp_path: Path, quiet_browser: Browser) -> None:
    make_run(tmp_path / "run")
    clients = tmp_path / "run" / "clients.json"
    names = ["<b>cat</b>", *(f"class {place}" for place in range(1, 10))]
    clients.write_text(json.dumps(json.loads(clients.read_text()) | {"class_names": names}))
    write_study_page(Study([Run.load(tmp_path / "run")]), tmp_path / "report.html")
    quiet_browser.open(tmp_path / "report.html")
    ticks = "document.querySelector('#fairness .chart').querySelectorAll('.xtick text')"
    assert quiet_browser.script(f"[...{ticks}].map((one) => one.textContent)") == names


def test_a_deadline_to_start_with_is_proposed(opened: Browser) -> None:
    """A study has no advice of `lesson plan`, so the page computes the proposal itself."""
    text = opened.script("document.querySelector('#deadline').textContent")
    assert re.search(r"Start with \d[\d.]* s\. .* LESSON then aggregates \d", text)


def test_the_axis_of_accuracy_is_switched(opened: Browser) -> None:
    read = "document.querySelector('#accuracy .xtitle').textContent"
    assert opened.script(read) == "simulated time (s)"
    opened.script("document.querySelectorAll('#accuracy .choice button')[1].click()")
    opened.settle()
    assert opened.script(read) == "global rounds"
    pressed = "[...document.querySelectorAll('#accuracy .choice button')].map((one) => one.ariaPressed)"
    assert opened.script(pressed) == ["false", "true"]


def test_all_lines_are_read_at_one_moment(opened: Browser) -> None:
    opened.script("document.querySelector('#accuracy .choice button').click()")
    opened.settle()
    opened.script("Plotly.Fx.hover(document.querySelector('#accuracy .chart'), { xval: 420 })")
    opened.settle()
    told = str(opened.script("document.querySelector('#accuracy .hoverlayer').textContent"))
    assert "lesson" in told
    assert "fedavg" in told


def test_the_schedule_of_another_strategy(opened: Browser) -> None:
    count = "document.querySelectorAll('#schedule .barlayer path').length"
    alt = "document.querySelector('#schedule .chart').ariaLabel"
    assert str(opened.script(alt)).startswith("Schedule of lesson")
    bars = opened.script(count)
    opened.script("document.querySelectorAll('#schedule .choice button')[1].click()")
    opened.settle()
    assert str(opened.script(alt)).startswith("Schedule of fedavg")
    assert opened.script(count) != bars


def test_the_theme_is_changed_by_hand(opened: Browser) -> None:
    ink = "getComputedStyle(document.querySelector('#accuracy .xtitle')).fill"
    before = opened.script(ink)
    for _ in range(2):  # as the system, light, dark
        opened.script("document.getElementById('theme').click()")
    opened.settle()
    assert opened.script("document.documentElement.dataset.theme") == "dark"
    assert opened.script(ink) != before


def test_names_and_words_for_who_cannot_see_charts(opened: Browser) -> None:
    assert opened.script("[...document.querySelectorAll('.chart')].every((one) => one.ariaLabel.length > 30)")
    unnamed = (
        "[...document.querySelectorAll('button, input, select')]"
        ".filter((one) => !(one.ariaLabel || one.textContent.trim() || one.labels?.length))"
    )
    assert opened.script(f"{unnamed}.length") == 0
    assert opened.script("document.querySelectorAll('h1').length") == 1


def test_the_command_is_copied(opened: Browser) -> None:
    opened.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    opened.click("#settings .quoted button")
    opened.script("new Promise((done) => setTimeout(done, 100))")
    assert opened.script("document.querySelector('#settings .quoted button').textContent") == "Copied"
    assert opened.script("navigator.clipboard.readText()") == opened.script("Page.data.command")
    assert opened.script("document.activeElement.textContent") == "Copied", "the keyboard is where it was"


def test_a_single_run(quiet_browser: Browser, page: Path) -> None:
    quiet_browser.open(page.with_name("single.html"))
    assert quiet_browser.script("document.querySelectorAll('#schedule .choice').length") == 0
    assert quiet_browser.script("[...document.querySelectorAll('main > section')].map((one) => one.id)") == SECTIONS


def test_a_reproduction(quiet_browser: Browser, tmp_path: Path) -> None:
    write_paper_page(RESULTS, tmp_path / "paper.html")
    assert (tmp_path / "paper.html").stat().st_size < 6e6
    quiet_browser.open(tmp_path / "paper.html")
    claims = "document.querySelectorAll('#claims tbody tr').length"
    everything = quiet_browser.script(claims)
    quiet_browser.script("document.querySelectorAll('#claims .choice button')[1].click()")
    assert 0 < quiet_browser.script(claims) < everything
    quiet_browser.script("document.querySelectorAll('img').forEach((one) => one.loading = 'eager')")
    quiet_browser.script("Promise.all([...document.images].map((one) => one.decode()))")
    assert quiet_browser.script("[...document.images].every((one) => one.naturalWidth > 100)")
    quiet_browser.screenshot("reproduction-1280")
