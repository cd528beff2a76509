"""The deadline explorer in a real browser: it shows what `lesson plan` computes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from helpers.chromium import Browser
from helpers.flights import write_flight
from lesson.cli import main

SLIDER, FIELD = "#deadline-slider", "#deadline-field"
pytestmark = pytest.mark.slow
SLOW = "client,latency_s\na,12\nb,25\nc,41\nd,41.5\ngone,inf\n"
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
    """Fail unless the page agrees with a plan: tiers, round lengths, and the averages at this deadline."""
    shown = json.loads(
        browser.script(f"""(() => {{
            const {{ clients }} = Page.data.fleet, latency_s = clients.latency_s.map((value) => value ?? Infinity);
            const fleet = {{ ...clients, latency_s }}, ensure = document.querySelector(".controls input").checked;
            const deadline_s = Number(document.querySelector("{FIELD}").value) || Infinity;
            const look = Tiers.lookAtDeadline(fleet, deadline_s, ensure);
            return JSON.stringify({{ look, fedavg: Tiers.lookAtFedavg(fleet), fedcs: Tiers.lookAtFedcs(fleet, look) }});
        }})()""")
    )
    assert drawn_tiers(browser) == {str(one["client"]): one["tier"] for one in expected["clients"] if one["tier"]}
    assert shown["look"]["round_s"] == pytest.approx(expected["round_s"]["lesson"], rel=1e-12)
    assert shown["fedavg"]["round_s"] == expected["round_s"]["fedavg"]
    assert (shown["fedcs"] or {"round_s": None})["round_s"] == expected["round_s"]["fedcs"]
    row = next((row for row in expected["deadlines"] if row["deadline_s"] == expected["deadline_s"]), {})
    for name in row.keys() - {"promoted", "on_time"}:
        value = row[name]
        assert shown["look"][name] == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)), name


@pytest.mark.parametrize(("fleet", "written"), [("drawn", "7.123"), ("slow", "10"), ("mixed", "0.3")])
def test_page_agrees_with_the_command(
    fleet: str, written: str, page: Callable[..., Browser], plan: Callable[..., Data]
) -> None:
    """Deadlines from the slider, typed in, and proposed. 0.9 and 2.1 are 3 and 7 times 0.3, despite rounding."""
    browser = page(fleet)
    check_same(browser, plan(*FLEETS[fleet]))
    browser.script(f"document.querySelector('{SLIDER}').focus()")
    browser.press(Keys.ARROW_RIGHT, times=30)
    check_same(browser, plan(*FLEETS[fleet], "--deadline", deadline(browser)))
    browser.type(FIELD, written)
    check_same(browser, plan(*FLEETS[fleet], "--deadline", written))
    click(browser, "Proposed")
    proposed = plan(*FLEETS[fleet], "--deadline", "auto")
    assert float(deadline(browser)) == proposed["deadline_s"]
    check_same(browser, proposed)
    click(browser, "No deadline")
    check_same(browser, plan(*FLEETS[fleet], "--deadline", "inf"))
    browser.type(FIELD, "-3")
    assert len(alerts(browser)) == 1


def test_file_replaces_the_fleet(page: Callable[..., Browser], plan: Callable[..., Data]) -> None:
    """Latencies, a recording, and a file that is neither."""
    browser = page("drawn")
    recording = write_flight(Path("flight.jsonl"), [[5.0, -20, 7.5], [5.5, -20, 8], [6, -30, 9]])
    for flags in (["--latencies", "mixed.csv"], ["--flight", str(recording)]):
        expected = plan(*flags, "--deadline", "auto")
        browser.choose_file("input[type=file]", Path(flags[1]).resolve())
        assert alerts(browser) == []
        assert float(deadline(browser)) == expected["deadline_s"]
        assert drawn_tiers(browser) == {one["client"]: one["tier"] for one in expected["clients"] if one["tier"]}
    Path("bad.csv").write_text("client,latency_s\na,1\nb,-2\n")
    browser.choose_file("input[type=file]", Path("bad.csv").resolve())
    (line,) = alerts(browser)
    assert "line 3" in line
    click(browser, "Back to the original fleet")
    assert len(drawn_tiers(browser)) == 30


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
    browser.screenshot(f"plan-{fleet}-{width}-{'dark' if dark else 'light'}")
