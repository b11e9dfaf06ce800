"""A wall clock that jumps, in every Python process with this folder on PYTHONPATH.

``JUMP`` names a file with the error of the clock in seconds; without the file it is 0. The
monotonic clock does not jump, as when an operator or NTP sets the time.
"""

import datetime
import os
import sys
import time
from typing import Any

_time, _datetime = time.time, datetime.datetime


def wrong() -> float:
    try:
        with open(os.environ["JUMP"]) as file:
            return float(file.read() or 0)
    except (OSError, KeyError, ValueError):
        return 0.0


class _AsTheReal(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _datetime)


class _Jumping(_datetime, metaclass=_AsTheReal):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _datetime.now(tz) + datetime.timedelta(seconds=wrong())


def _jumping() -> float:
    """Return the wrong time, but to gRPC the true one: its core compares it with the kernel's."""
    caller = str(sys._getframe(1).f_globals.get("__name__"))
    return _time() + (0.0 if caller.startswith("grpc") else wrong())


if os.environ.get("JUMP"):
    time.time = _jumping
    datetime.datetime = _Jumping  # type: ignore[misc]
