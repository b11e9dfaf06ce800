"""``flower-supernode`` that polls for messages often during work, and rarely without work.

Flower's loop sleeps 3 s without a message, 0.5 s between two checks for the ClientApp's reply, and
1 s before it retries a part of a message. None of these times is configurable. As a script, this
file runs Flower's own program, but the step that fetches a message also starts the ClientApp, as
``flower-superexec`` would, and returns after its end.

It also corrects two errors. If a run ends while Flower fetches one of its messages, the message is
not deleted, and each later reply is assigned to the following message. And Flower waits without a
limit for a ClientApp that is killed at each start, and for the reply of one that is killed before
it takes its message or while it sends its reply.

Flower logs seven lines for each message. Unless its level is set (FLWR_LOG_LEVEL), this program
logs one line for each run instead, and its ClientApps log from level warning on.
"""

import contextlib
import functools
import importlib
import logging
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, final

PROGRAM = "flower-supernode"
CLIENT_APP = "flwr-clientapp"  #: Flower's program for one message, on PATH
LOOP = "flwr.supernode.start_client_internal"
STOPPED, FAILED = "stopped", "failed"  #: Flower's final statuses of a task
STARTS = 3  #: starts of a ClientApp for one message; Flower allows 30 s for each
WAITING = ("pending",)  #: Flower's status of a task before its start
AT_WORK = (*WAITING, "starting", "running")  #: statuses of a task before its end
SHORTEST = 0.05  #: shortest wait in seconds; as in ``common/flower/rpc.py``, part of the bundle
LOOK, REPLY = 1 / 4, 1 / 20
"""Next wait as a fraction of the elapsed time, for a message and for a reply.

A poll for messages is a call of the SuperLink, a poll for the reply is local to the process."""
LONGEST_LOOK, LONGEST_REPLY = 3.0, 0.5  #: longest waits in seconds: Flower's values
LEVEL = "FLWR_LOG_LEVEL"  #: environment variable with the level of Flower's log
Result = TypeVar("Result")
log = logging.getLogger("flwr.fedmosaic")


def wait(look: Callable[[], Result | None], share: float, longest: float) -> Result:
    """Poll ``look`` until it returns a result; each wait is a ``share`` of the elapsed time."""
    since = time.monotonic()
    while (result := look()) is None:
        time.sleep(min(longest, max(SHORTEST, share * (time.monotonic() - since))))
    return result


@final
class Node:
    """Wrapped steps of Flower's loop, which also do the work of ``flower-superexec``."""

    address = ""  #: address of this SuperNode for ClientApps
    quiet = False  #: whether to leave out Flower's lines once the node waits for messages

    def __init__(self) -> None:
        self._runs: set[int] = set()  #: runs with a message so far

    def listening(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``serve``, which starts the server for ClientApps, to store its address."""

        @functools.wraps(serve)
        def wrapped(**named: Any) -> Any:
            server = serve(**named)
            self.address = server.bound_address
            return server

        return wrapped

    def serving(self, fetch: Callable[..., int | None]) -> Callable[..., int]:
        """Wrap ``fetch``, which fetches one message if any, to wait for a message and its reply."""

        @functools.wraps(fetch)
        def wrapped(*, state: Any, object_store: Any, **named: Any) -> int:
            if self.quiet:
                leave_out_messages()
                self.quiet = False
            take = functools.partial(whole, fetch, state=state, object_store=object_store, **named)
            run_id = wait(take, LOOK, LONGEST_LOOK)
            if run_id not in self._runs:
                log.info("run %d: the first message has arrived", run_id)
            self._runs.add(run_id)
            starts = Counter[int]()
            wait(functools.partial(self._ended, state, starts), REPLY, LONGEST_REPLY)
            ensure_reply(run_id, state, object_store)
            return run_id

        return wrapped

    def _ended(self, state: Any, starts: Counter[int]) -> bool | None:
        """Start pending ClientApps; return True if no task is left, else None.

        A ClientApp that never reported its start is started again, up to ``STARTS`` times in all.
        ``starts``: their number so far by task.
        """
        for task in state.get_tasks(statuses=WAITING):
            if starts[task.task_id] == STARTS:
                why = f"{STARTS} ClientApps ended before they reported their start"
                log.warning("run %d: %s", task.run_id, why)
                state.finish_task(task.task_id, FAILED, why)
                continue
            starts[task.task_id] += 1
            token = state.claim_task(task.task_id)
            line = [CLIENT_APP, "--clientappio-api-address", self.address, "--token", token]
            subprocess.Popen([*line, "--insecure", "--parent-pid", str(os.getpid())])
        return not state.get_tasks(statuses=AT_WORK) or None


def leave_out_messages() -> None:
    """Leave out Flower's log lines below level warning, and those of new ClientApps."""
    for handler in logging.getLogger("flwr").handlers:
        handler.addFilter(lambda line: line.name == log.name or line.levelno >= logging.WARNING)
    os.environ[LEVEL] = "WARNING"


def whole(
    fetch: Callable[..., int | None], *, state: Any, object_store: Any, **named: Any
) -> int | None:
    """Return the run id of a complete message from ``fetch``, or None without one.

    All traces of a message whose transfer was aborted are deleted.
    """
    earlier = {task.task_id for task in state.get_tasks()}
    run_id = fetch(state=state, object_store=object_store, **named)
    messages = list(state.msg_store)
    if run_id is not None and messages:
        return run_id
    for task in state.get_tasks():
        if task.task_id not in earlier:  # first, so that output of its process is rejected
            state.finish_task(task.task_id, STOPPED, "the transfer of the message was aborted")
    state.delete_messages()
    for name in messages:
        object_store.delete(name)
    return None


def ensure_reply(run_id: int, state: Any, object_store: Any) -> None:
    """Ensure that the run's message has exactly one reply, with all of its parts.

    Call it after the end of the ClientApp, which may have been killed before it took the message,
    or while it sent its reply. The first complete reply is kept. Without one, Flower's error reply
    for a ClientApp that stopped responding is stored. The parts of the message are deleted.
    """
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    def is_complete(name: str) -> bool:
        parts = iterate_object_tree(object_store.get_object_tree(name))
        return all(object_store.get(part.object_id) for part in parts)

    stored = {name: entry.message.metadata for name, entry in state.msg_store.items()}
    replies = [name for name, metadata in stored.items() if metadata.reply_to_message_id]
    kept = next(filter(is_complete, replies), None)
    for name in replies:
        if name != kept:
            state.delete_messages(message_ids=[name])
            object_store.delete(name)
    if kept is None:
        for message in state.get_messages(run_ids=[run_id], is_reply=False):  # not taken so far
            state.record_message_processing_start(message.metadata.message_id)
        state._store_error_replies({run_id})
    for name in stored.keys() - set(replies):
        object_store.delete(name)


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of a SuperNode with ``arguments`` of ``flower-supernode``."""
    program = [Path(sys.executable).name, "-P", str(Path(__file__).resolve())]
    return [*program, "--isolation", "process", *arguments]


def main() -> None:
    """Run as ``flower-supernode``."""
    from flwr.supernode.cli import flower_supernode

    loop: Any = importlib.import_module(LOOP)
    node = Node()
    node.quiet = LEVEL not in os.environ
    loop.run_clientappio_api_grpc = node.listening(loop.run_clientappio_api_grpc)
    loop._pull_and_store_message = node.serving(loop._pull_and_store_message)
    loop.pull_objects = functools.partial(loop.pull_objects, initial_backoff=SHORTEST)
    flower_supernode()


def refusal(end: BaseException) -> str:
    """Return the SuperLink's reason if it refused a request before ``end``, else an empty string.

    After a refusal, Flower interrupts its own process; the error is in the interrupt's context.
    """
    import grpc

    error: Any = end
    while error is not None:
        if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNAUTHENTICATED:
            return str(error.details())
        error = error.__cause__ or error.__context__
    return ""


def program() -> NoReturn:
    """Run ``main`` and end the process with its status.

    If the SuperLink refuses a request during a run, for example because the clock of this machine
    was set, print one line and exit with status 1.
    """
    status: Any = 0
    try:
        main()
    except (SystemExit, KeyboardInterrupt) as end:
        status = getattr(end, "code", 1)  # an interrupt has no code
        if reason := refusal(end):
            status = f"error: the SuperLink refuses this client: {reason}"
    except BaseException:
        traceback.print_exc()
        status = 1
    if isinstance(status, str):  # as sys.exit does
        print(status, file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)  # do not wait for gRPC's threads, which may never end


if __name__ == "__main__":
    sys.argv[0] = PROGRAM
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(PROGRAM[:15])  # the name in top and ps
    program()
