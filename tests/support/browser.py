"""A headless Chromium, driven through chromedriver's W3C protocol: plain HTTP and JSON, so that no
package is needed."""

from __future__ import annotations

import base64
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waiting import PATIENCE_SECONDS

_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
"""Without a sandbox: containers, and root, have none to give."""


class Browser:
    """A session with one window. Made by `open_browser`."""

    def __init__(self, address: str, chromium: Path, profile: Path) -> None:
        self._address = address
        options = {
            "binary": str(chromium),
            "args": [*_ARGUMENTS, f"--user-data-dir={profile}", "--window-size=1280,1000"],
            "perfLoggingPrefs": {"enableNetwork": True},
        }
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{session['sessionId']}"

    def open(self, address: str) -> None:
        """Load a page."""
        self._call("POST", f"{self._session}/url", {"url": address})

    def run(self, script: str, *arguments: object) -> Any:
        """Run a function with this body in the page and return its result."""
        body = {"script": script, "args": list(arguments)}
        return self._call("POST", f"{self._session}/execute/sync", body)

    def wait_for(self, script: str, *arguments: object) -> Any:
        """Wait until the function's result is true, and return it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (result := self.run(script, *arguments)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {script}")
            time.sleep(0.05)
        return result

    def click_at(self, x: float, y: float) -> None:
        """Press and release the mouse's button at a place of the window, in pixels."""
        moves = [
            {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 50},
            {"type": "pause", "duration": 200},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        self._act(moves)

    def drag(self, x: float, y: float, by: float) -> None:
        """Drag the mouse from a place to the right."""
        moves = [
            {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 50},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "x": round(x + by), "y": round(y), "duration": 200},
            {"type": "pointerUp", "button": 0},
        ]
        self._act(moves)

    def move_to(self, x: float, y: float) -> None:
        """Let the mouse hover at a place."""
        self._act([{"type": "pointerMove", "x": round(x), "y": round(y), "duration": 50}])

    def prefer(self, scheme: str) -> None:
        """Have the user prefer `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", {"features": features})

    def command(self, name: str, parameters: dict[str, Any]) -> Any:
        """Send a command of the DevTools protocol."""
        return self._call(
            "POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters}
        )

    def read_console(self) -> list[str]:
        """Return the console messages of the pages since the last call."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in entries]

    def read_requests(self) -> list[str]:
        """Return the URLs that the pages have requested since the last call."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            e["params"]["request"]["url"]
            for e in events
            if e["method"] == "Network.requestWillBeSent"
        ]

    def resize(self, width: int, height: int) -> None:
        """Give the page a window of this size in pixels, which may be smaller than Chromium's own
        can be."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", size)

    def take_screenshot(self, file: Path) -> None:
        """Write the window as PNG."""
        file.write_bytes(base64.b64decode(self._call("GET", f"{self._session}/screenshot")))

    def close(self) -> None:
        """End the session."""
        self._call("DELETE", self._session)

    def _act(self, moves: list[dict[str, Any]]) -> None:
        mouse = {
            "type": "pointer",
            "id": "mouse",
            "parameters": {"pointerType": "mouse"},
            "actions": moves,
        }
        self._call("POST", f"{self._session}/actions", {"actions": [mouse]})

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode(errors="replace")[:2000]) from error


@contextmanager
def open_browser(programs: Path, scratch: Path) -> Iterator[Browser]:
    """Run `chromium`, driven by the `chromedriver` beside it in the folder `programs`; both end
    with the block."""
    output = scratch / "driver.log"
    with output.open("wb") as log:
        child = subprocess.Popen(
            [programs / "chromedriver", "--port=0"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://127.0.0.1:{_wait_for(lambda: _find_port(output.read_text()))}"
        browser = Browser(address, programs / "chromium", scratch / "profile")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        child.terminate()
        child.wait(PATIENCE_SECONDS)


def _find_port(told: str) -> str:
    return told.partition("successfully on port ")[2].partition(".")[0]


def _wait_for(find: Callable[[], str]) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (line := find()):
        if time.monotonic() > deadline:
            raise TimeoutError("chromedriver says no port")
        time.sleep(0.05)
    return line
