"""Waiting for a state. How long it takes is no test's business; a bound only ends what hangs."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 900.0  #: seconds within which anything that is waited for has happened
LONGEST = 0.25  #: seconds from one look to the next; a look may search all processes

T = TypeVar("T")


def until(what: str | Callable[[], str], found: Callable[[], T]) -> T:
    """What ``found`` returns once it is true; ``what`` is said if that never comes."""
    deadline, pause = time.monotonic() + PATIENCE, 0.02
    while not (result := found()):
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {PATIENCE:g} s in vain for {said}")
        time.sleep(pause)
        pause = min(1.2 * pause, LONGEST)
    return result
