"""A headless Chromium with one page, driven by Selenium."""

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
)


def find_programs() -> tuple[str, str] | None:
    """Return the paths of browser and driver; None if one of them is missing."""
    browser, driver = next(filter(None, map(shutil.which, PROGRAMS)), None), shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """One open page, with the errors and network requests since it was opened."""

    def __init__(self, driver: Chrome, screenshots: Path) -> None:
        self.driver = driver
        self._screenshots = screenshots
        self._errors: list[str] = []
        self._requests: list[str] = []

    @property
    def errors(self) -> list[str]:
        """Errors and warnings on the console, and uncaught exceptions."""
        entries = self.driver.get_log("browser")
        self._errors += [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]
        return self._errors

    @property
    def requests(self) -> list[str]:
        """Requested URLs."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        self._requests += [params["request"]["url"] for params in sent]
        return self._requests

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page from the disk and wait until it is drawn."""
        self.driver.get("about:blank")
        self.errors.clear()
        self.requests.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 640
        )
        self.driver.get(path.resolve().as_uri())
        self.settle()

    def script(self, expression: str) -> Any:
        """Return the value of an expression evaluated in the page; a promise is awaited."""
        return self.driver.execute_script(f"return {expression}")

    def settle(self) -> None:
        """Wait until all pending changes are drawn."""
        self.script(
            "new Promise((done) => { let frames = 0; requestAnimationFrame(function look() {"
            " frames += 1;"
            " if (frames > 2 && !document.querySelector('[aria-busy=true]')) setTimeout(done);"
            " else requestAnimationFrame(look); }); })"
        )

    def press(self, key: str, times: int = 1) -> None:
        """Press and release a key."""
        ActionChains(self.driver).send_keys(key * times).perform()
        self.settle()

    def type(self, selector: str, text: str) -> None:
        """Replace the content of a field."""
        self._find(selector).send_keys(Keys.CONTROL, "a", Keys.NULL, text)
        self.settle()

    def click(self, selector: str) -> None:
        """Click on the middle of an element."""
        self._find(selector).click()
        self.settle()

    def screenshot(self, name: str) -> Path:
        """Save a screenshot of the whole page as NAME.png and return its path."""
        self._screenshots.mkdir(parents=True, exist_ok=True)
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path = self._screenshots / f"{name}.png"
        path.write_bytes(base64.b64decode(taken["data"]))
        return path

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of Chromium's DevTools protocol, for what Selenium has no method for."""
        return self.driver.execute_cdp_cmd(method, params)

    def _find(self, selector: str) -> WebElement:
        """Return an element, scrolled into view at once: Selenium would click while a page is still scrolling."""
        element = self.driver.find_element(By.CSS_SELECTOR, selector)
        self.driver.execute_script("arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' })", element)
        return element


@contextmanager
def running_browser(program: str, driver: str, screenshots: Path) -> Iterator[Browser]:
    """Run a browser with its own profile, and end it."""
    options = ChromeOptions()
    options.binary_location = program
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with Chrome(options, Service(driver)) as running:
        yield Browser(running, screenshots)
