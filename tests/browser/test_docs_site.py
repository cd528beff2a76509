"""The documentation in a real browser, opened from disk: its search works without a server."""

from pathlib import Path

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from helpers.chromium import Browser

pytestmark = pytest.mark.slow
RESULTS = """[...document.querySelectorAll("*")].filter((element) => element.shadowRoot)
    .flatMap((element) => [...element.shadowRoot.querySelectorAll("a")].map((link) => link.innerText))"""
"""Texts of the search results; the theme shows its search in a shadow root."""


def test_search_finds_a_word_and_asks_no_other_host(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html")
    ActionChains(browser.driver).key_down(Keys.CONTROL).send_keys("k").key_up(Keys.CONTROL).perform()
    browser.settle()
    browser.press("shadowing")
    found = WebDriverWait(browser.driver, 30).until(lambda _: browser.script(RESULTS))
    assert [text for text in found if "shadowing" in text.lower()]
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:///", "data:"))] == []
