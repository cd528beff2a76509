"""The page of `lesson replay` in a real browser."""

from pathlib import Path

import pytest

from helpers.chromium import Browser
from helpers.flights import flight
from lesson.flight.advice import recommend
from lesson.flight.fit import fit
from lesson.flight.replay import Candidate, replay
from lesson.report.page.replay_page import write_replay_page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    fitted = fit(flight(folder / "flight.jsonl", [[4.0, 9.0, 19.0], [4.5, 9.5, -2.0]] * 10))
    candidates = [Candidate("lesson", 10.0), Candidate("fedavg", 10.0), Candidate("fedcs", 1.0)]
    result = replay(fitted, candidates, num_replicates=5)
    write_replay_page(folder / "replay.html", result, recommend(result), notes=["a note"], command="lesson replay f")
    return folder / "replay.html"


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_the_page_shows_reality_alternatives_and_clients(
    quiet_browser: Browser, page: Path, width: int, dark: bool
) -> None:
    quiet_browser.open(page, width=width, height=844, dark=dark)
    sections = quiet_browser.script("[...document.querySelectorAll('main > section')].map((one) => one.id)")
    assert sections == ["advice", "strategies", "clients", "notes"]
    rows = "[...document.querySelectorAll('#strategies tbody th')].map((one) => one.textContent)"
    assert quiet_browser.script(rows) == ["recorded: fedavg", "lesson, 10 s", "fedavg"]
    text = quiet_browser.script("document.getElementById('strategies').textContent")
    assert "fedcs, 1 s cannot run:" in text
    assert "LessonStrategy(deadline_s=10)" in quiet_browser.script("document.getElementById('advice').textContent")
    charts = quiet_browser.script("document.querySelectorAll('.chart .main-svg').length")
    assert charts >= 2
    fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert quiet_browser.script(fits)
