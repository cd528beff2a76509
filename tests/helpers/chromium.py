"""A headless Chromium, controlled by its DevTools protocol over a pair of pipes, without a driver or a library."""

import base64
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
    "about:blank",
)
KEYS = {"Tab": 9, "Enter": 13, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
TIMEOUT_S = 60.0


def find_program() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """One open page, with the errors and network requests since it was opened."""

    def __init__(self, to_browser: int, from_browser: int, screenshots: Path) -> None:
        self.errors: list[str] = []
        """Errors and warnings on the console, and uncaught exceptions."""
        self.requests: list[str] = []
        """Requested URLs."""
        self._to, self._from = to_browser, from_browser
        self._screenshots = screenshots
        self._read = b""
        self._calls = 0
        self._loaded = False
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page from the disk and wait until it is drawn."""
        self.call("Page.navigate", url="about:blank")
        self.settle()
        self.errors.clear()
        self.requests.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 640
        )
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._wait(lambda: self._loaded)
        self.settle()

    def script(self, expression: str) -> Any:
        """Return the value of an expression evaluated in the page; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(_exception(answer["exceptionDetails"]))
        return answer["result"].get("value")

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
        for _ in range(times):
            for kind in ("rawKeyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])
        self.settle()

    def type(self, selector: str, text: str) -> None:
        """Replace the content of a field."""
        self.script(f"{{ const field = document.querySelector({selector!r}); field.focus(); field.select(); }}")
        self.call("Input.insertText", text=text)
        self.settle()

    def choose_file(self, selector: str, path: Path) -> None:
        """Select a file in a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])
        self.settle()

    def click(self, selector: str) -> None:
        """Click on the middle of an element."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def drop_file(self, selector: str, path: Path) -> None:
        """Drop a file onto the middle of an element."""
        x, y = self._middle(selector)
        dragged = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=dragged)
        self.settle()

    def _middle(self, selector: str) -> Any:
        """Scroll an element into view and return the coordinates of its center."""
        return self.script(
            f"(() => {{ const element = document.querySelector({selector!r});"
            " element.scrollIntoView({ block: 'center', behavior: 'instant' });"
            " const box = element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )

    def screenshot(self, name: str) -> Path:
        """Save a screenshot of the whole page as NAME.png and return its path."""
        self._screenshots.mkdir(parents=True, exist_ok=True)
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path = self._screenshots / f"{name}.png"
        path.write_bytes(base64.b64decode(taken["data"]))
        return path

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._calls += 1
        number, answers = self._calls, []
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        os.write(
            self._to, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        self._wait(lambda: bool(answers), number, answers)
        assert "error" not in answers[0], f"{method}: {answers[0]['error']['message']}"
        return answers[0].get("result", {})

    def _wait(self, done: Any, number: int = 0, answers: list[dict[str, Any]] | None = None) -> None:
        until = time.monotonic() + TIMEOUT_S
        while not done():
            message = self._receive(until)
            if "id" not in message:
                self._note(message["method"], message["params"])
            elif message["id"] == number and answers is not None:
                answers.append(message)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._from, 1 << 20) if ready else b""
            assert part, "the browser has gone or does not answer"
            self._read += part
        message, self._read = self._read.split(b"\0", 1)
        return dict(json.loads(message))

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(_exception(told["exceptionDetails"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(told["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(part.get("value", part.get("description"))) for part in told["args"]))


def _exception(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description", details["text"]))


@contextmanager
def running_browser(program: str, profile: Path, screenshots: Path) -> Iterator[Browser]:
    """Run a browser with its own profile, and kill it at the end."""
    its_input, our_output = os.pipe()
    our_input, its_output = os.pipe()
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (1, 2)]
    pipes = [(os.POSIX_SPAWN_DUP2, its_input, 3), (os.POSIX_SPAWN_DUP2, its_output, 4)]
    argv = [program, f"--user-data-dir={profile}", *FLAGS]
    process = os.posix_spawn(program, argv, os.environ, file_actions=[*silent, *pipes], setpgroup=0)
    os.close(its_input)
    os.close(its_output)
    try:
        yield Browser(our_output, our_input, screenshots)
    finally:
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(our_input)
        os.close(our_output)
