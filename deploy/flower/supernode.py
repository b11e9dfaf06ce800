"""``flower-supernode`` that looks for messages often while there is work, and seldom without.

Flower's loop sleeps 3 s when there is no message, and half a second at a time until its ClientApp
has answered; neither can be configured. Run as a script, this file is Flower's own program with a
clock of ours in that loop's module, which uses ``time`` for these sleeps alone: waits between two
tries of a call that failed are elsewhere and stay as they are. A ``flower-supernode`` that is typed
by hand works as well, and waits as ever.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

PROGRAM = "flower-supernode"
LOOP = "flwr.supernode.start_client_internal"
SHORTEST = 0.05  #: seconds of a wait
LOOK, REPLY = 1 / 4, 1 / 20
"""How much of the time that has passed a wait may add: since the last message, until its reply.

A look for messages is a call of the SuperLink, a look for the reply is within the process."""


@final
class Clock:
    """What the SuperNode's loop takes for the module ``time``."""

    def __init__(
        self,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sleep, self._now = sleep, now
        self._since, self._share = now(), LOOK

    def sleep(self, seconds: float) -> None:
        """Wait for a share of the time that has passed, and at most ``seconds``, Flower's wait."""
        passed = self._now() - self._since
        self._sleep(min(seconds, max(SHORTEST, self._share * passed)))

    def during(self, answer: Callable[..., None]) -> Callable[..., None]:
        """``answer``, which waits for the reply to a message and sends it, known to the clock."""

        @functools.wraps(answer)
        def known(*arguments: Any, **named: Any) -> None:
            self._since, self._share = self._now(), REPLY
            try:
                answer(*arguments, **named)
            finally:
                self._since, self._share = self._now(), LOOK

        return known


def command(arguments: Sequence[str]) -> list[str]:
    """The command line of a SuperNode with these arguments of ``flower-supernode``."""
    return [Path(sys.executable).name, "-P", str(Path(__file__).resolve()), *arguments]


def main() -> None:
    """Be ``flower-supernode``."""
    from flwr.supernode.cli import flower_supernode

    loop, clock = vars(importlib.import_module(LOOP)), Clock()
    loop["time"], loop["_push_messages"] = clock, clock.during(loop["_push_messages"])
    flower_supernode()


if __name__ == "__main__":
    sys.argv[0] = PROGRAM
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(PROGRAM[:15])  # what top and ps show
    main()
