"""A headless Chromium, driven over a pipe with the DevTools protocol: for tests and screenshots of pages."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
    "--disable-dev-shm-usage", "--disable-background-networking", "--remote-debugging-pipe", "about:blank",
)  # fmt: skip


# The protocol's file descriptors are 3 and 4, wherever the pipes are.
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
for fd, wanted in zip(ends, (3, 4)):
    os.dup2(fd, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """The browser's program, if there is one; `ETUDE_BROWSER` may name another."""
    for name in (os.environ.get("ETUDE_BROWSER"), *NAMES):
        if name and (path := shutil.which(name)):
            return path
    return None


class Browser:
    """One browser with one page. `problems` are errors that pages logged or threw, `requests` what they asked for."""

    def __init__(self, program: str, timeout_s: float = 60.0) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="etude-browser-", ignore_cleanup_errors=True)
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(to_child), str(from_child), program,
             f"--user-data-dir={self._profile.name}", *FLAGS],
            pass_fds=(to_child, from_child), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        self._timeout_s, self._number, self._rest = timeout_s, 0, b""
        self._session = ""
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def send(self, method: str, **params: Any) -> Any:
        """One command; returns its result. Events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + self._timeout_s
        while True:
            answer = self._next(until)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._event(answer)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("the browser does not answer")
            self._rest += chunk
        one, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(one))

    def _event(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", "failed"))
        return result["result"].get("value")

    def open(self, page: Path, *, width: int = 1280, height: int = 900, theme: str = "light", before: str = "") -> None:
        """Opens a report and waits until it is drawn. `before` is a script that runs ahead of the page's own."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        script = None
        if before:
            script = self.send("Page.addScriptToEvaluateOnNewDocument", source=before)["identifier"]
        self.send("Page.navigate", url=page.resolve().as_uri())
        self.wait("document.documentElement?.dataset.ready === 'true'")
        if script:
            self.send("Page.removeScriptToEvaluateOnNewDocument", identifier=script)

    def wait(self, expression: str) -> None:
        until = time.monotonic() + self._timeout_s
        while not self.evaluate(expression):
            if time.monotonic() > until:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.05)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of what is in view, or of the whole page."""
        clip = {}
        if whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")
