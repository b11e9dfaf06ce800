"""Wait for a state. Tests do not depend on durations; the limit only ends a test that hangs."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 900.0  #: seconds after which a wait fails
LONGEST = 0.25  #: seconds between two checks; a check may search all processes

T = TypeVar("T")


def until(what: str | Callable[[], str], check: Callable[[], T], longest: float = LONGEST) -> T:
    """Call ``check`` until its result is true and return it; ``what`` is named if that fails.

    ``longest``: seconds between two checks.
    """
    deadline, pause = time.monotonic() + PATIENCE, 0.02
    while not (result := check()):
        if time.monotonic() > deadline:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {PATIENCE:g} s in vain for {text}")
        time.sleep(pause)
        pause = min(1.2 * pause, longest)
    return result
