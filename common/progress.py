"""Progress within a round: one line every few seconds with the counts of the running loops.

``steps`` counts a loop, ``block`` names other work. When a loop advances, the reporter of the
thread shows one line with all running loops: ``round 3, server step, epoch 2/10, batch 5/40``. The
default reporter writes to Flower's log. Reporting only reads the clock: results, random streams and
memory stay the same.
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
MARK = "progress: "  #: prefix of progress lines in the log
DISPLAY_PAUSE, LOG_PAUSE = 2.0, 10.0  #: least seconds between two lines, on a display and in a log
REPEAT = 60.0  #: least seconds between two equal lines


@final
@dataclass(eq=False)
class _Loop:
    """A running loop or block of work; ``total`` is 0 for a block without a count."""

    name: str
    total: int
    done: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.done:,}/{self.total:,}" if self.total else self.name


@final
class Reporter:
    """The running loops and blocks of one thread, outermost first.

    ``show`` gets a line at most every ``pause`` seconds, and an equal line at most every ``REPEAT``
    seconds. The first line comes when the outermost block has lasted ``pause`` seconds.
    """

    def __init__(
        self,
        show: Callable[[str], None],
        pause: float = DISPLAY_PAUSE,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._show, self._pause, self._clock = show, pause, clock
        self._loops: list[_Loop] = []
        self._due, self._shown, self._shown_at = 0.0, "", 0.0
        self.note = ""  #: line of another process, added to the reports of the running block
        self.counts = True  #: whether lines have counts and notes

    @contextmanager
    def block(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Name a block of work; see the function ``block``."""
        loop = _Loop(name, total)
        if not self._loops:
            self._due = self._clock() + self._pause
        self._loops.append(loop)

        def report(done: int) -> None:
            loop.done = done
            if (now := self._clock()) >= self._due:
                self._due = now + self._pause
                names = [*map(str, self._loops), self.note]
                names = names if self.counts else [loop.name for loop in self._loops]
                line = ", ".join(filter(None, names))
                if line != self._shown or now >= self._shown_at + REPEAT:
                    self._shown, self._shown_at = line, now
                    self._show(line)

        try:
            yield report
        finally:
            self.note = ""
            self._loops.remove(loop)


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


def without_colours() -> None:
    """Leave out the colour codes of Flower's log lines where they go to no terminal."""
    for handler in logging.getLogger("flwr").handlers:
        stream = getattr(handler, "stream", None)
        if getattr(handler, "colored", False) and not (stream and stream.isatty()):
            handler.colored = False  # type: ignore[attr-defined]


@contextmanager
def without_counts() -> Iterator[None]:
    """Show lines of this thread without counts and notes, which may reveal who replied."""
    current = reporter()
    counts, current.counts = current.counts, False
    try:
        yield
    finally:
        current.counts = counts


def block(name: str, total: int = 0) -> AbstractContextManager[Callable[[int], None]]:
    """Name a block of work, and yield a function that sets how many of ``total`` items are done.

    ``total`` = 0: the block has no count.
    """
    return reporter().block(name, total)


def steps(items: Iterable[T], name: str, total: int = 0) -> Iterable[T]:
    """Return an iterable that yields ``items`` and reports the number of the current item.

    ``total``: the number of items, by default ``len(items)``. Returns ``items`` itself if there is
    one item, or if the number is unknown; then count the loop that yields the items.
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
