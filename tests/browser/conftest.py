import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.chromium import Browser, find_programs, running_browser

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests. With LESSON_BROWSER=required, a missing browser is an error."""
    programs = find_programs()
    if programs is None:
        remedy = "on Debian: apt install chromium chromium-driver"
        reason = f"Chromium and its driver must be installed for tests of pages; {remedy}"
        if os.environ.get("LESSON_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    screenshots = Path(os.environ.get("LESSON_SCREENSHOTS", ROOT / "build" / "screenshots"))
    with running_browser(*programs, screenshots) as running:
        yield running


@pytest.fixture
def quiet_browser(browser: Browser) -> Iterator[Browser]:
    """The browser; fails if a page logs a warning or requests anything but its own file."""
    yield browser
    assert browser.errors == []
    asked = {request for request in browser.requests if not request.startswith("data:")}  # pictures inside the page
    assert len(asked) == 1
    assert browser.requests[0].startswith("file:///")
