"""What may leave the server of a run under differential privacy: journal fields, notes and lines.

The journal is the source of the summary, the trackers, the displays and the reports, so
``withhold`` covers them too; it keeps the fields marked ``Use.RELEASED``. A log line is marked
where it arises (``RELEASED``), and so is the line of a stopped run (``Stopped.released``). A field
or a line without the mark is withheld.

Whether a reply was refused, or a client failed, depends on a single update without noise. It leaves
no trace. A missing reply does not depend on the update, so its reason is listed, without client and
number: ``Failure.released``, set where the failure arises. Log lines have it as ``extra``.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from common import progress
from common.journal import ClockTime, Entry, Failure, JsonObject, Member, Use
from common.settings.config import Config
from server_app.aggregation.privacy import NoisySums, spent
from server_app.stopped import Stopped

log = logging.getLogger("flwr.fedmosaic")

RELEASED = {"released": True}
"""``extra`` of a log line that may leave the server; a text may leave it in place of the line."""


def withhold(entry: Entry, config: Config, clients: int) -> None:
    """Reduce a journal entry to released fields, and add ε, δ and the reasons of missing replies.

    Without differential privacy the entry stays as it is.
    """
    if not config.privacy.on:
        return
    secret = config.privacy.sampling == "secret"  # a missing reply tells that a client was selected
    if entry.round:
        entry.notes = [] if secret else _missing(entry.failures)
        sums = NoisySums.by_round(Path(config.run.out))
        entry.privacy = spent(config, clients, entry.round, sums)
    else:
        entry.clients = [_reduced(member) for member in entry.clients]
    if entry.clock is not None:
        entry.clock = entry.clock.model_copy(update=_withheld(ClockTime))
    for event in entry.events:
        event.member = event.member and _reduced(event.member)
    for name in _withheld(Entry):
        _clear(entry, name)
    if secret:
        _clear(entry, "selected")
    if config.privacy.hides_times:
        _clear(entry, "seconds")


def _clear(entry: Entry, name: str) -> None:
    """Set a field of the entry to its default, so that the journal's line does not have it."""
    setattr(entry, name, Entry.model_fields[name].get_default(call_default_factory=True))
    entry.model_fields_set.discard(name)


def _reduced(member: Member) -> Member:
    """Return a client of the census without what depends on its data."""
    return member.model_copy(update=_withheld(Member))


def _withheld(kind: type[JsonObject]) -> dict[str, object]:
    """Return the fields that may not leave the server, with their defaults."""
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in kind.model_fields.items()
        if Use.RELEASED not in field.metadata
    }


def _missing(failures: list[Failure]) -> list[str]:
    """Return one note for each released reason among the failures of a round."""
    reasons = {failure.released for failure in failures} - {""}
    return [f"{reason}; a missing reply counts as a zero update" for reason in sorted(reasons)]


def stop_line(error: Exception) -> str:
    """Return the line of a run that ``error`` stops: its released one, or only type and place."""
    if isinstance(error, Stopped) and error.released:
        return error.released
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f" in {at.tb_frame.f_code.co_filename}, line {at.tb_lineno}" if at else ""
    return f"{type(error).__name__}{where}; under [privacy] its text is withheld"


@final
class Pace:
    """Fixed duration of the rounds of a run, in ``seconds``; 0: rounds end without a wait.

    The rounds end at fixed times after the start of the first one. A round that lasts longer ends
    with a later one of these times.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds, self._clock, self._sleep = seconds, clock, sleep
        self._end = 0.0  #: end of the current round; 0 before the first one

    def begin(self) -> None:
        """Begin a round."""
        self._end = (self._end or self._clock()) + self._seconds

    def wait(self, t: int, renew: Callable[[], None] = lambda: None) -> None:
        """Wait until the end of round t; call ``renew`` at least every second meanwhile."""
        if not self._seconds:
            return
        if self._clock() > self._end:
            late = "round %d lasted longer than privacy.round-seconds = %g"
            log.warning(late, t, self._seconds, extra=RELEASED)
        while self._clock() > self._end:
            self._end += self._seconds
        while (rest := self._end - self._clock()) > 0:
            self._sleep(min(rest, 1.0))
            renew()


@contextmanager
def released_logs() -> Iterator[None]:
    """Withhold the server's log lines without a mark, and show progress without counts."""
    lines = _ReleasedLines()
    log.addFilter(lines)
    try:
        with progress.without_counts():
            yield
    finally:
        log.removeFilter(lines)


@final
class _ReleasedLines(logging.Filter):
    """Filter of log records from the modules of the server."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not Path(record.pathname).is_relative_to(Path(__file__).parent):
            return True  # of a client in the same process, or a progress line
        text = getattr(record, "released", "")
        if isinstance(text, str):
            record.msg, record.args = text, ()
        record.exc_info = None
        return bool(text)
