"""Asynchronous rounds (``mode = "buffered"``): a step whenever K updates have arrived."""

from collections.abc import Callable

from server_app.buffered.by_arrival import ByArrival, Replayed
from server_app.buffered.by_clock import ByClock
from server_app.buffered.rounds import Buffered
from server_app.run import Run


def buffered_rounds(run: Run, renew: Callable[[int], None]) -> Buffered:
    """Return the asynchronous rounds of a run, with the order of events that its settings say.

    Raises ``ValueError`` as ``Buffered`` does.
    """
    if run.config.on_clock:
        return ByClock(run, renew)
    return (Replayed if run.config.replays_jobs else ByArrival)(run, renew)
