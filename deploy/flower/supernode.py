"""``flower-supernode`` that looks for messages often while there is work, and seldom without.

Flower's loop sleeps 3 s when there is no message, and half a second at a time until its ClientApp
has answered; neither can be configured. Run as a script, this file is Flower's own program with a
clock of ours in that loop's module, which uses ``time`` for these sleeps alone: waits between two
tries of a call that failed are elsewhere and stay as they are. A ``flower-supernode`` that is typed
by hand works as well, and waits as ever.

One more thing is mended. If a run ends while Flower fetches a message of it, the message stays
behind: its answer is later taken for that to the next message, whose own answer waits for the
message after it, and so on. Such a SuperNode is online and always one answer late.
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
STOPPED = "stopped"  #: Flower's word for how a task has ended
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


def whole(fetch: Callable[..., int | None]) -> Callable[..., int | None]:
    """``fetch``, which takes a message from the SuperLink, leaving nothing of one that it gave up.

    It returns the message's run, or None where nothing has come that can be answered.
    """

    @functools.wraps(fetch)
    def known(*, state: Any, object_store: Any, **named: Any) -> int | None:
        begun = {task.task_id for task in state.get_tasks()}
        run_id = fetch(state=state, object_store=object_store, **named)
        left = list(state.msg_store)
        if run_id is not None and left:
            return run_id
        for task in state.get_tasks():
            if task.task_id not in begun:  # ended first: what its process says is refused then
                state.finish_task(task.task_id, STOPPED, "the message was given up")
        state.delete_messages()
        for name in left:
            object_store.delete(name)
        return None

    return known


def command(arguments: Sequence[str]) -> list[str]:
    """The command line of a SuperNode with these arguments of ``flower-supernode``."""
    return [Path(sys.executable).name, "-P", str(Path(__file__).resolve()), *arguments]


def main() -> None:
    """Be ``flower-supernode``."""
    from flwr.supernode.cli import flower_supernode

    loop, clock = vars(importlib.import_module(LOOP)), Clock()
    loop["time"], loop["_push_messages"] = clock, clock.during(loop["_push_messages"])
    loop["_pull_and_store_message"] = whole(loop["_pull_and_store_message"])
    flower_supernode()


if __name__ == "__main__":
    sys.argv[0] = PROGRAM
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(PROGRAM[:15])  # what top and ps show
    main()
