"""A real browser for tests: Chromium through chromedriver, spoken to as WebDriver defines it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def find_browser() -> str | None:
    """The path of Chromium, if its driver is there as well."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    return found if shutil.which("chromedriver") else None


class Browser:
    """One window."""

    def __init__(self, address: str, folder: Path, *flags: str) -> None:
        self._address = address
        options = {
            "binary": find_browser(),
            "args": [*FLAGS, f"--user-data-dir={folder}", *flags],
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from None

    def open(self, address: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a piece of JavaScript returns."""
        body = {"script": script, "args": arguments}
        return self._ask("POST", f"{self._session}/execute/sync", body)

    def wait(self, script: str, seconds: float = 10.0) -> float:
        """Wait until a piece of JavaScript returns something true; how long that took."""
        began = time.monotonic()
        while not self.run(script):
            spent = time.monotonic() - began
            assert spent < seconds, f"{script}: {self.run('return document.body.innerText')[:2000]}"
            time.sleep(0.05)
        return time.monotonic() - began

    def emulate(self, width: int, height: int, dark: bool) -> None:
        """Show pages as on a screen of this size, light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setDeviceMetricsOverride", size)
        self._command("Emulation.setEmulatedMedia", {"features": [scheme]})

    def _command(self, name: str, parameters: dict[str, Any]) -> Any:
        body = {"cmd": name, "params": parameters}
        return self._ask("POST", f"{self._session}/goog/cdp/execute", body)

    def picture(self, path: Path, whole: bool = False) -> None:
        made = self._command("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(made["data"]))

    def problems(self) -> list[str]:
        """Errors and warnings of the console since the last call."""
        logged = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [each["message"] for each in logged if each["level"] != "INFO"]

    def requested(self) -> list[str]:
        """The addresses that were asked for since the last call."""
        logged = self._ask("POST", f"{self._session}/se/log", {"type": "performance"})
        messages = (json.loads(each["message"])["message"] for each in logged)
        return [
            each["params"]["request"]["url"]
            for each in messages
            if each["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        self._ask("DELETE", self._session)


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    with subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            line = next(line for line in driver.stdout if "port " in line and "success" in line)
            port = line.rstrip().rstrip(".").rsplit(" ", 1)[1]
            browser = Browser(f"http://127.0.0.1:{port}", folder)
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()
