"""``flower-supernode`` that looks for messages often while there is work, and seldom without.

Flower's loop sleeps 3 s when there is no message, half a second at a time until its ClientApp has
answered, and a second before it asks again for a part of a message. None of these can be
configured. Run as a script, this file is Flower's own program, but the step that fetches a message
also starts the ClientApp, as ``flower-superexec`` would, and returns when it has ended.

One more thing is mended. If a run ends while Flower fetches a message of it, the message stays
behind, and from then on each answer is taken for that to the next message.
"""

import contextlib
import functools
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

PROGRAM = "flower-supernode"
CLIENT_APP = "flwr-clientapp"  #: Flower's program for one message, found on PATH
LOOP = "flwr.supernode.start_client_internal"
STOPPED = "stopped"  #: Flower's word for how a task has ended
WAITING = ("pending",)  #: and for how one stands that nobody has begun
AT_WORK = (*WAITING, "starting", "running")  #: or that has not ended
SHORTEST = 0.05  #: seconds of a wait; as in ``common/flower/rpc.py``, which lies in the bundle
LOOK, REPLY = 1 / 4, 1 / 20
"""How much of the time that has passed a wait may add: since the last message, until its reply.

A look for messages is a call of the SuperLink, a look for the reply is within the process."""
LONGEST_LOOK, LONGEST_REPLY = 3.0, 0.5  #: seconds of a wait at most: Flower's own
Found = TypeVar("Found")


def wait(look: Callable[[], Found | None], share: float, longest: float) -> Found:
    """What ``look`` finds at last, looking again after a ``share`` of the time that has passed."""
    since = time.monotonic()
    while (found := look()) is None:
        time.sleep(min(longest, max(SHORTEST, share * (time.monotonic() - since))))
    return found


@final
class Node:
    """The steps of Flower's loop in a form that does what ``flower-superexec`` does, too."""

    address = ""  #: where ClientApps find this SuperNode

    def listening(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        """``serve``, which begins to serve ClientApps, noting where."""

        @functools.wraps(serve)
        def known(**named: Any) -> Any:
            server = serve(**named)
            self.address = server.bound_address
            return server

        return known

    def serving(self, fetch: Callable[..., int | None]) -> Callable[..., int]:
        """``fetch``, which takes a message if there is one, until one has come and is answered."""

        @functools.wraps(fetch)
        def known(*, state: Any, object_store: Any, **named: Any) -> int:
            take = functools.partial(whole, fetch, state=state, object_store=object_store, **named)
            run_id = wait(take, LOOK, LONGEST_LOOK)
            wait(functools.partial(self._ended, state), REPLY, LONGEST_REPLY)
            return run_id

        return known

    def _ended(self, state: Any) -> bool | None:
        """Whether nothing is left to do. A ClientApp that never said that it runs begins anew."""
        for task in state.get_tasks(statuses=WAITING):
            token = state.claim_task(task.task_id)
            line = [CLIENT_APP, "--clientappio-api-address", self.address, "--token", token]
            subprocess.Popen([*line, "--insecure", "--parent-pid", str(os.getpid())])
        return not state.get_tasks(statuses=AT_WORK) or None


def whole(
    fetch: Callable[..., int | None], *, state: Any, object_store: Any, **named: Any
) -> int | None:
    """The run of a message that ``fetch`` has taken, leaving nothing of one that it gave up.

    None where nothing has come that can be answered.
    """
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


def command(arguments: Sequence[str]) -> list[str]:
    """The command line of a SuperNode with these arguments of ``flower-supernode``."""
    program = [Path(sys.executable).name, "-P", str(Path(__file__).resolve())]
    return [*program, "--isolation", "process", *arguments]


def main() -> None:
    """Be ``flower-supernode``."""
    from flwr.supernode.cli import flower_supernode

    loop: Any = importlib.import_module(LOOP)
    node = Node()
    loop.run_clientappio_api_grpc = node.listening(loop.run_clientappio_api_grpc)
    loop._pull_and_store_message = node.serving(loop._pull_and_store_message)
    loop.pull_objects = functools.partial(loop.pull_objects, initial_backoff=SHORTEST)
    flower_supernode()


if __name__ == "__main__":
    sys.argv[0] = PROGRAM
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(PROGRAM[:15])  # what top and ps show
    main()
