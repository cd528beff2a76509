"""The board in a real browser: rows can be sorted, filtered, opened and drawn."""

from pathlib import Path

import pytest

from helpers.chromium import Browser
from helpers.tuned import FILE, everything, small
from lesson.report.page.board import board_data, write_board
from lesson.report.page.document import write_document
from lesson.settings.settings import Settings

pytestmark = pytest.mark.slow
NAMES = "[...document.querySelectorAll('#board tbody button.name')].map((one) => one.lastChild.textContent)"


def outcome(settings: Settings) -> list[float]:
    """LESSON is faster the shorter τ; FedAvg never reaches 70 %; seeds differ by 1 point."""
    best = 0.6 if settings.strategy.name == "fedavg" else 0.8 + 0.01 * (settings.run.seed % 100)
    slow = 4 if settings.strategy.deadline_s == 20.0 else 2
    return [0.3] * slow + [best] * (8 - slow)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board")
    design = small(folder, FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    write_board(design.study(everything(design, outcome), {}), folder / "board.html")
    return folder / "board.html"


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_rows_can_be_sorted_filtered_and_opened(quiet_browser: Browser, page: Path, width: int, dark: bool) -> None:
    quiet_browser.open(page, width=width, height=844, dark=dark)
    assert quiet_browser.script("[...document.querySelectorAll('main > section')].map((one) => one.id)") == [
        "board",
        "curves",
        "check",
        "read",
    ]
    assert quiet_browser.script(NAMES) == ["lesson", "lesson τ=10", "lesson τ=20", "fedavg"]
    assert quiet_browser.script("document.querySelectorAll('#curves .scatterlayer .trace').length") == 4 * 3
    assert quiet_browser.script("document.documentElement.scrollWidth") == width

    quiet_browser.click("[data-key=value]")
    assert quiet_browser.script("document.querySelector('th[aria-sort=descending] button').dataset.key") == "value"
    quiet_browser.click("[data-key=value]")
    assert quiet_browser.script(NAMES)[0] == "fedavg"
    quiet_browser.click("[data-key=entry]")
    assert quiet_browser.script(NAMES) == ["fedavg", "lesson", "lesson τ=10", "lesson τ=20"]

    quiet_browser.click("tbody tr:nth-child(2) button.name")
    told = str(quiet_browser.script("document.querySelector('tr.more').textContent"))
    assert "Chosen by tuning: deadline_s = 10. 3 seeds." in told
    assert "lesson sweep study.toml --tune --verify lesson --beta 0.1" in told
    quiet_browser.screenshot(f"board-{width}-{'dark' if dark else 'light'}")

    quiet_browser.click("tbody input")
    assert quiet_browser.script("document.querySelectorAll('#curves .scatterlayer .trace').length") == 3 * 3
    quiet_browser.click("[aria-label=β] button:last-child")
    assert len(quiet_browser.script(NAMES)) == 2 * 4
    quiet_browser.click("[aria-label=Group] button:nth-child(3)")
    assert set(quiet_browser.script(NAMES)) == {"lesson τ=10", "lesson τ=20"}
    quiet_browser.click("[aria-label=Target] button:last-child")
    assert "time to 50\u00a0%" in quiet_browser.script("document.querySelector('[data-key=time_s]').textContent")
    assert "Shortest time to 50\u00a0%" in quiet_browser.script("document.querySelector('#board .cards').textContent")


@pytest.mark.parametrize(
    ("higher_is_better", "names"),
    [
        (True, ["fedavg", "lesson τ=20", "lesson τ=10", "lesson"]),
        (False, ["lesson τ=10", "lesson τ=20", "fedavg", "lesson"]),
    ],
)
def test_rows_that_miss_the_target_are_sorted_by_value(
    quiet_browser: Browser, tmp_path: Path, higher_is_better: bool, names: list[str]
) -> None:
    """The best value comes first, and a row without a value last."""
    design = small(tmp_path, FILE.replace("betas = [0.1, 1.0]", "betas = [1.0]"))
    data = board_data(design.study(everything(design, lambda _: [0.3] * 8), {}))
    data["metric"]["higher_is_better"] = higher_is_better
    values = {"fedavg": 0.3, "lesson": None, "lesson τ=10": 0.1, "lesson τ=20": 0.2}
    for row in data["rows"]:
        row["value"] = values[row["entry"]]
    write_document(tmp_path / "board.html", "Board", ["board.js"], data)
    quiet_browser.open(tmp_path / "board.html", width=1280, height=844, dark=False)
    assert quiet_browser.script(NAMES) == names
