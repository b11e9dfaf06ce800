"""Progress within a round: how far the running loops are, in one line every few seconds.

A loop counts itself with ``steps``, other work names itself with ``block``. A loop that advances
puts together one line of all that run: ``round 3, server step, epoch 2/10, batch 5/40``. The line
goes to the reporter of the thread, by default Flower's log. Reporting reads the clock and changes
nothing else: results, random streams and memory stay the same.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar, final

log = logging.getLogger("flwr.fedmosaic")

T = TypeVar("T")
MARK = "progress: "  #: what a line of progress in the log begins with
DISPLAY_PAUSE, LOG_PAUSE = 2.0, 10.0  #: least seconds between two lines, on a display and in a log


@final
@dataclass(eq=False)
class _Part:
    """A running loop or block; ``total`` is 0 if it does not count."""

    name: str
    total: int
    done: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.done:,}/{self.total:,}" if self.total else self.name


@final
class Reporter:
    """The running loops and blocks of one thread, outermost first.

    ``show`` gets a line at most every ``pause`` seconds, and none before the outermost block has
    lasted that long.
    """

    def __init__(
        self,
        show: Callable[[str], None],
        pause: float = DISPLAY_PAUSE,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._show, self._pause, self._clock = show, pause, clock
        self._parts: list[_Part] = []
        self._due = 0.0
        self.note = ""  #: line of another process, added to the reports of the running block

    @contextmanager
    def block(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """See the function ``block``."""
        part = _Part(name, total)
        if not self._parts:
            self._due = self._clock() + self._pause
        self._parts.append(part)

        def report(done: int) -> None:
            part.done = done
            if (now := self._clock()) >= self._due:
                self._due = now + self._pause
                self._show(", ".join(filter(None, [*map(str, self._parts), self.note])))

        try:
            yield report
        finally:
            self.note = ""
            self._parts.remove(part)


_reporter: ContextVar[Reporter | None] = ContextVar("reporter", default=None)


def reporter() -> Reporter:
    """Return the reporter of this thread; by default one that writes to Flower's log."""
    current = _reporter.get()
    if current is None:
        current = Reporter(lambda line: log.info("%s%s", MARK, line), LOG_PAUSE)
        _reporter.set(current)
    return current


def report_to(new: Reporter) -> None:
    """Make ``new`` the reporter of this thread."""
    _reporter.set(new)


@contextmanager
def reporting(new: Reporter) -> Iterator[None]:
    """Make ``new`` the reporter of this thread until the end of the block."""
    token = _reporter.set(new)
    try:
        yield
    finally:
        _reporter.reset(token)


def block(name: str, total: int = 0) -> AbstractContextManager[Callable[[int], None]]:
    """Name a block of work; it gets a function that takes the number of items done of ``total``."""
    return reporter().block(name, total)


def steps(items: Iterable[T], name: str, total: int = 0) -> Iterable[T]:
    """Return an iterable that yields ``items`` and reports which of them is under way.

    ``total``: their number, by default ``len(items)``. A single item is not counted. Items of
    unknown number are not counted either: the loop that yields them should count itself.
    """
    total = total or (len(items) if isinstance(items, Sized) else 0)
    return _counted(items, name, total) if total > 1 else items


def _counted(items: Iterable[T], name: str, total: int) -> Iterator[T]:
    with block(name, total) as report:
        done = 0
        for item in items:
            done += 1  # noqa: SIM113 - enumerate keeps an item until it has the next one
            report(done)
            yield item
            del item  # free a batch before the next one is made
