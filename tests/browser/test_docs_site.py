"""The documentation in a real browser, opened from disk: its search works without a server."""

from pathlib import Path

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from helpers.chromium import Browser

pytestmark = pytest.mark.slow
SEARCH = """[...document.querySelectorAll("*")].filter((element) => element.shadowRoot).flatMap((element) => [
    ...[...element.shadowRoot.querySelectorAll("input")].map((field) => field.value),
    ...[...element.shadowRoot.querySelectorAll("a")].map((link) => link.innerText.split("\\n")[0]),
])"""
"""The text in the search field, then the titles of the results; the theme shows its search in a shadow root."""


def test_search_works_offline(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html")
    ActionChains(browser.driver).key_down(Keys.CONTROL).send_keys("k").key_up(Keys.CONTROL).perform()
    browser.settle()
    browser.press("shadowing")

    def is_found(_: object) -> bool:
        """Whether the whole word is typed and the best result is about it: any prefix has results."""
        typed, *titles = browser.script(SEARCH) or [""]
        return typed == "shadowing" and bool(titles) and "shadowing" in titles[0].lower()

    WebDriverWait(browser.driver, 30).until(is_found)
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:///", "data:"))] == []
