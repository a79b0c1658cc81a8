"""A headless Chromium, driven over its DevTools protocol through two pipes."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


def find_browser() -> str | None:
    """The program of a Chromium, `$CHROMIUM` first."""
    names = filter(None, (os.environ.get("CHROMIUM"), *_NAMES))
    return next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """One process and one tab; what goes wrong in the page is kept.

    Attributes:
      complaints: Errors and warnings of the console, exceptions of scripts.
      requests: Addresses that the page asked for.
    """

    def __init__(self, program: str):
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on descriptor 4.
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [program, f"--user-data-dir={self._profile.name}", *_FLAGS, *root]
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._ids = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    @classmethod
    def start(cls, program: str, tries: int = 3) -> "Browser":
        """A browser that answers: once in a while one hangs while it starts."""
        for _ in range(tries - 1):
            with contextlib.suppress(TimeoutError):
                return cls(program)
        return cls(program)

    def _attach(self) -> None:
        """Opens the tab."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """Ends the process and deletes its profile."""
        os.close(self._to)
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        self._profile.cleanup()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends one command and waits for its answer."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _read(self, seconds: float = 60) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise TimeoutError(f"the browser said nothing for {seconds} s")
            chunk = os.read(self._from, 1 << 16)
            if not chunk:
                raise ConnectionError("the browser ended")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            error = details.get("exception", {}).get("description", details["text"])
            self.complaints.append(error)
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{params['type']}: {params['args']}")
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(
        self, path: Path, *, width: int = 1440, height: int = 900, dark: bool = False
    ) -> None:
        """Opens a file from disk and waits until it is loaded and drawn."""
        self.complaints.clear()
        self.requests.clear()
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete'")
        self.settle()

    def resize(self, width: int, height: int) -> None:
        """Makes the window this large."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def settle(self) -> None:
        """Waits for two frames to be drawn."""
        self.evaluate(
            "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
        )

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {condition}")
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, promises awaited."""
        answer = self.send(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", details).get("description"))
        return answer["result"].get("value")

    def hover(self, x: float, y: float) -> None:
        """Moves the mouse."""
        self._mouse("mouseMoved", x, y)
        self.settle()

    def click(self, x: float, y: float) -> None:
        """Presses and releases the left button."""
        self.drag((x, y), (x, y))

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Presses the left button here and releases it there."""
        self._mouse("mouseMoved", *start)
        self._mouse("mousePressed", *start, button="left", buttons=1, clickCount=1)
        if start != end:
            self._mouse("mouseMoved", *end, button="left", buttons=1)
        self._mouse("mouseReleased", *end, button="left", clickCount=1)
        self.settle()

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str) -> None:
        """Presses one key, such as `Enter`, `ArrowRight` or `a`."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=codes.get(key, 0),
                **more,
            )
        self.settle()

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the whole page, or of what the window shows of it."""
        answer = self.send(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        path.write_bytes(base64.b64decode(answer["data"]))
