"""The browser notes what `quiet_browser` forbids."""

from pathlib import Path

import pytest

from helpers.chromium import Browser

pytestmark = pytest.mark.slow
PAGE = """<!doctype html><img src="missing.png"><script>
console.log("fine"); console.warn("a warning"); console.error("an error"); console.assert(false, "an assertion");
Promise.reject(new Error("a rejected promise")); throw new Error("an exception");
</script>"""


def test_errors_warnings_and_requests_are_noted(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGE)
    browser.open(tmp_path / "page.html")
    told = "\n".join(browser.errors)
    for expected in ("a warning", "an error", "an assertion", "a rejected promise", "an exception", "missing.png"):
        assert expected in told
    assert "fine" not in told
    assert [Path(request).name for request in browser.requests] == ["page.html", "missing.png"]
    (tmp_path / "page.html").write_text("<!doctype html>")
    browser.open(tmp_path / "page.html")
    assert (browser.errors, len(browser.requests)) == ([], 1)
