"""The deadline explorer in a real browser: it shows what `lesson plan` computes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from helpers.chromium import Browser
from lesson.cli import main

SLIDER, FIELD = "#deadline-slider", "#deadline-field"
pytestmark = pytest.mark.slow
SLOW = "client,latency_s\na,12\nb,25\nhospital-northern-1,41\nhospital-northern-2,41.5\ngone,inf\n"
MIXED = "client,latency_s,compute_s,upload_s\nphone,0.3,0.1,0.2\ntablet,0.9,0.5,0.4\npi,2.1,,\nsensor,0.31,0.3,0.01\n"
FLEETS: dict[str, list[str]] = {
    "drawn": ["--clients", "30", "--seed", "3"],
    "slow": ["--latencies", "slow.csv", "--set", "strategy.ensure_first_tier=true"],
    "mixed": ["--latencies", "mixed.csv"],
}
Data = dict[str, Any]


@pytest.fixture(autouse=True)
def _fleets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slow.csv").write_text(SLOW)
    Path("mixed.csv").write_text(MIXED)


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Callable[..., Data]:
    """Return the JSON of `lesson plan` with these flags."""

    def plan(*argv: str) -> Data:
        assert main(["plan", "--json", *argv]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return plan


@pytest.fixture
def page(quiet_browser: Browser, plan: Callable[..., Data]) -> Callable[..., Browser]:
    """Open the page of a fleet."""

    def opened(fleet: str, *argv: str, **window: Any) -> Browser:
        plan(*FLEETS[fleet], *argv, "--html", "plan.html")
        quiet_browser.open(Path("plan.html"), **window)
        return quiet_browser

    return opened


def text(browser: Browser, selector: str) -> str:
    return str(browser.script(f"document.querySelector({selector!r}).textContent"))


def alerts(browser: Browser) -> list[str]:
    found = browser.script("[...document.querySelectorAll('[role=alert]')].map((one) => one.textContent)")
    return [line for line in found if line]


def click(browser: Browser, label: str) -> None:
    browser.script(
        f"[...document.querySelectorAll('button')].find((one) => one.textContent.startsWith({label!r})).click()"
    )
    browser.settle()


def drawn_tiers(browser: Browser) -> dict[str, int]:
    """Return the tier of each dot in the chart of latencies."""
    return dict(
        browser.script(
            "(() => { const [trace] = document.querySelector('[aria-label^=\"Latency of each\"]').data;"
            " return Object.fromEntries(trace.text.map((name, place) => [name, trace.customdata[place][0]])); })()"
        )
    )


def deadline(browser: Browser) -> str:
    return str(browser.script(f"document.querySelector('{FIELD}').value")) or "inf"


def check_same(browser: Browser, expected: Data) -> None:
    """Fail unless the page agrees with a plan: the tier of each dot, and the averages at this deadline."""
    assert drawn_tiers(browser) == {str(one["client"]): one["tier"] for one in expected["clients"] if one["tier"]}
    rounds = text(browser, "#explorer .cards .value").removesuffix(" s")
    assert float(rounds) == pytest.approx(expected["round_s"]["lesson"], rel=0.01)
    cells = browser.script("[...document.querySelectorAll('.pair table tr')].map((row) => row.innerText.split('\\t'))")
    _, fedavg, fedcs = next(row[1:] for row in cells if row[0] == "round length")
    assert float(fedavg.removesuffix(" s")) == pytest.approx(expected["round_s"]["fedavg"], rel=0.01)
    assert (fedcs == "–") == (expected["round_s"]["fedcs"] is None)


@pytest.mark.parametrize("fleet", FLEETS)
def test_page_agrees_with_the_command(fleet: str, page: Callable[..., Browser], plan: Callable[..., Data]) -> None:
    """Deadlines from the slider and the buttons. 0.9 and 2.1 are 3 and 7 times 0.3, despite rounding."""
    browser = page(fleet)
    check_same(browser, plan(*FLEETS[fleet]))
    browser.script(f"document.querySelector('{SLIDER}').focus()")
    browser.press(Keys.ARROW_LEFT, times=30)
    check_same(browser, plan(*FLEETS[fleet], "--deadline", deadline(browser)))
    click(browser, "Proposed")
    proposed = plan(*FLEETS[fleet], "--deadline", "auto")
    assert float(deadline(browser)) == proposed["deadline_s"]
    check_same(browser, proposed)
    click(browser, "No deadline")
    check_same(browser, plan(*FLEETS[fleet], "--deadline", "inf"))


def test_typed_deadline_is_replaced_by_the_nearest_computed_one(
    page: Callable[..., Browser], plan: Callable[..., Data]
) -> None:
    """The field keeps what is typed until it is left; a number that is no deadline changes nothing."""
    browser = page("slow")
    browser.type(FIELD, "20.04")
    assert deadline(browser) == "20.04"
    (line,) = alerts(browser)
    assert "20 s" in line
    assert "--deadline 20.04" in line
    check_same(browser, plan(*FLEETS["slow"], "--deadline", "20"))
    browser.press(Keys.TAB)
    assert deadline(browser) == "20"
    browser.type(FIELD, "20")
    assert alerts(browser) == []
    browser.type(FIELD, "-3")
    assert len(alerts(browser)) == 1
    check_same(browser, plan(*FLEETS["slow"], "--deadline", "20"))


def test_exported_code_and_command(page: Callable[..., Browser]) -> None:
    browser = page("slow", "--deadline", "23")
    snippets = "[...document.querySelectorAll('#explorer .quoted code')].map((one) => one.textContent)"
    code, command = browser.script(snippets)
    made: Data = {}
    exec(code, made)
    assert made["strategy"].deadline_s == 23.0
    assert command.startswith("lesson run --latencies slow.csv")
    assert command.endswith("--strategy lesson --deadline 23")
    click(browser, "FedCS")
    code, command = browser.script(snippets)
    exec(code, made)
    assert made["strategy"].strategy.deadline_s == 23.0
    assert command.endswith("--strategy fedcs --deadline 23")


@pytest.mark.parametrize(("fleet", "width", "dark"), [("drawn", 360, False), ("mixed", 1280, True)])
def test_charts_fit_phones_and_desktops(fleet: str, width: int, dark: bool, page: Callable[..., Browser]) -> None:
    browser = page(fleet, width=width, dark=dark)
    assert browser.script("document.documentElement.scrollWidth") == width
    assert browser.script("getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 23, 30)" if dark else "rgb(255, 255, 255)"
    )
    points = "document.querySelectorAll('[aria-label^=Latency] .scatterlayer .point').length"
    assert browser.script(points) == len(drawn_tiers(browser))
    rows = browser.script(
        "[...document.querySelectorAll('[aria-label^=Schedule] .ytick text')].map((one) => one.textContent)"
    )
    assert len(set(rows)) == len(rows) == (4 if fleet != "drawn" else len(set(drawn_tiers(browser).values())))
    browser.screenshot(f"plan-{fleet}-{width}-{'dark' if dark else 'light'}")
