"""Live page of a run: the page of ``fedmosaic report``, with a script that updates it.

The page follows the files in the run's folder. It is drawn when a browser asks for it and the files
have changed, so an unwatched run loses no time. The libraries that draw it are imported then.
"""

import base64
import hashlib
import threading
from pathlib import Path
from time import monotonic, thread_time
from typing import final

from common.extras import check_installed
from deploy.report.read import JOURNAL, read, stamps
from deploy.report.serve import LOCKED, Route
from deploy.report.table import HERE
from server_app.storage.lock import NAME as LOCK

SCRIPT = (HERE / "live.js").read_text(encoding="utf-8")
DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = f"{LOCKED}; script-src 'sha256-{DIGEST}'; connect-src 'self'"
"""Content-Security-Policy: only our own script runs, and it may only ask this server."""
SHARE = 0.2  #: largest share of one core that drawing takes from a run on the same machine


def check(folder: Path, *, wait: bool = False) -> None:
    """Raise ``ValueError``, one line, if ``folder`` has no run or the extra is not installed.

    A run that has just started has only its lock. ``wait``: the folder need not exist yet.
    """
    if (folder / JOURNAL).exists() or not (wait or (folder / LOCK).exists()):
        read(folder)
    check_installed("matplotlib")


@final
class LivePage:
    """The current page of the run in ``folder``, which may not have begun yet."""

    def __init__(self, folder: Path) -> None:
        """Draw nothing yet."""
        self._folder = folder
        self._lock = threading.Lock()  # matplotlib draws in one thread at a time
        self._stamps: object = None  #: stamps of the files of ``_page``
        self._page, self._due = b"", 0.0

    @property
    def route(self) -> Route:
        """The page as a route of a ``Server``."""
        return Route("text/html; charset=utf-8", self.page, POLICY)

    def page(self) -> bytes:
        """Return the page; draw it again if the files have changed and ``SHARE`` allows it."""
        with self._lock:
            files = stamps(self._folder)
            if files != self._stamps and monotonic() >= self._due:
                self._page, seconds = self._draw()
                self._stamps = files
                self._due = monotonic() + seconds * (1 / SHARE - 1)
            return self._page

    def _draw(self) -> tuple[bytes, float]:
        """Return the page, and the seconds of the processor that drawing it took."""
        from deploy.report.pages import one
        from deploy.report.style import Page, render

        start, name = thread_time(), self._folder.name
        try:
            page = one(read(self._folder))
        except (ValueError, OSError) as error:
            page = Page(name, "", "failed", "cannot be read", (), [str(error)])
            if not (self._folder / JOURNAL).exists():
                why = f"{name} has no finished round and no census yet."
                page = Page(name, "", "open", "waiting for the run", (), [why])
        return render(page, SCRIPT, POLICY).encode(), thread_time() - start
