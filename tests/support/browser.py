"""A headless Chromium, driven over a pipe by its DevTools protocol."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.settings.version import ROOT
from tests.support.waiting import until

LOOK = Path(__file__).with_name("look.js").read_text(encoding="utf-8")
"""Script that returns what is wrong with the look of a page: contrasts, and the keyboard."""
PICTURES = ROOT / "build" / "screenshots"  #: where tests leave what they have seen
PROGRAM = shutil.which("chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


class Browser:
    """One page: ``with Browser(url, profile) as page: page.value("document.title")``."""

    def __init__(self, url: str, profile: Path) -> None:
        self._url, self._profile, self._last = url, profile, 0
        self.errors: list[str] = []  #: errors on the console

    def __enter__(self) -> "Browser":
        (theirs, self._out), (self._in, answers) = os.pipe(), os.pipe()
        command = [str(PROGRAM), *FLAGS, f"--user-data-dir={self._profile}"]
        # the shell moves the pipes to 3 and 4, where Chromium expects them
        moved = f'exec "$@" 3<&{theirs} 4>&{answers}'
        command = ["bash", "-c", moved, "bash", *command, "--remote-debugging-pipe", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, pass_fds=(theirs, answers), **quiet)
        os.close(theirs)
        os.close(answers)
        self._answers, self._session = os.fdopen(self._in, "rb", buffering=0), ""
        self._rest = b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=self._url)
        until("the page", lambda: self.value("document.readyState") == "complete")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._out)
        self._answers.close()

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last:
            event = answer.get("params", {})
            entry = event.get("entry", event)
            if entry.get("level") == "error" or answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(event))
        assert "error" not in answer, answer
        return answer["result"]

    def value(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return done["result"].get("value")

    def width(self, pixels: int, picture: Path | None = None) -> int:
        """Set the window's width, and return the width that the page takes.

        ``picture``: PNG of the whole page.
        """
        size = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": pixels < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        if picture is not None:
            picture.parent.mkdir(parents=True, exist_ok=True)
            shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
            picture.write_bytes(base64.b64decode(shot["data"]))
        return int(self.value("document.documentElement.scrollWidth"))

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            part = self._answers.read(65536)
            assert part, "Chromium has ended"
            self._rest += part
        first, _, self._rest = self._rest.partition(b"\0")
        return json.loads(first)


def check_look(addresses: Mapping[str, str], profile: Path, scheme: str) -> None:
    """Fail if a page has an error, is wider than the window, or has something hard to read.

    ``addresses``: by the name of the page's pictures. ``scheme``: of the colours, light or dark.
    """
    with Browser("about:blank", profile) as page:
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        page.call("Emulation.setEmulatedMedia", features=media)
        for name, address in addresses.items():
            page.call("Page.navigate", url=address)
            until(name, lambda: page.value("document.readyState") == "complete")
            for width in (1280, 375):
                picture = PICTURES / f"{name}-{scheme}-{width}.png"
                assert page.width(width, picture) <= width, picture
                assert page.value(LOOK) == [], picture
        assert page.errors == []
