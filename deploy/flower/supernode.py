"""``flower-supernode`` that polls for messages often during work, and rarely without work.

Flower's loop sleeps 3 s without a message, 0.5 s between two checks for the ClientApp's reply, and
1 s before it retries a part of a message. None of these times is configurable. As a program, this
module runs Flower's own one, but the step that fetches a message also starts the ClientApp, as
``flower-superexec`` would, and returns after its end.

The ClientApp is the program of this installation that checks bundle and run config (``pinned.py``),
never a program on PATH. A node with something to check proves before it connects that this program
refuses.

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

from deploy.flower import warm_client
from deploy.flower.owner import pinned, rules
from deploy.flower.processes import own_program

PROGRAM = "flower-supernode"
LOOP = "flwr.supernode.start_client_internal"
STOPPED, FAILED = "stopped", "failed"  #: Flower's final statuses of a task
STARTS = 3  #: starts of a ClientApp for one message; Flower allows 30 s for each
WAITING = ("pending",)  #: Flower's status of a task before its start
STARTING = ("starting",)  #: Flower's status until the ClientApp has reported its start
AT_WORK = (*WAITING, *STARTING, "running")  #: statuses of a task before its end
GONE = "ClientApp stopped responding."  #: Flower's reason for a message without a reply
SHORTEST = 0.05  #: shortest wait in seconds; as in ``common/flower/rpc.py``, part of the bundle
LOOK, REPLY = 1 / 4, 1 / 20
"""Next wait as a fraction of the elapsed time, for a message and for a reply.

A poll for messages is a call of the SuperLink, a poll for the reply is local to the process."""
LONGEST_LOOK, LONGEST_REPLY = 3.0, 0.5  #: longest waits in seconds: Flower's values
LEVEL = "FLWR_LOG_LEVEL"  #: environment variable with the level of Flower's log
Result = TypeVar("Result")
SIGNED_OFF = (
    "this client has left the federation; its state and its key are kept: start the same command "
    "again, and it takes part from the next round on"
)
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
        self._program = client_app()
        self._process: subprocess.Popen[bytes] | None = None  #: of the newest ClientApp
        self._failure = GONE  #: reason of the error reply, if there is no other reply

    def listening(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``serve``, which starts the server for ClientApps, to store its address."""

        @functools.wraps(serve)
        def wrapped(**named: Any) -> Any:
            server = serve(**named)
            self.address = server.bound_address
            return server

        return wrapped

    def stopping(self, register: Callable[..., None]) -> Callable[..., None]:
        """Wrap ``register``, which sets what signals do, to end the ClientApp and print a line.

        Nobody takes the ClientApp's reply any more, so it would report a lost connection.
        """

        def stop() -> None:
            if self._process is not None:
                self._process.kill()
            log.info(SIGNED_OFF)

        return functools.partial(register, exit_handlers=[stop])

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
            starts, self._failure = Counter[int](), GONE
            wait(functools.partial(self._ended, state, starts), REPLY, LONGEST_REPLY)
            ensure_reply(run_id, state, object_store, self._failure)
            return run_id

        return wrapped

    def _ended(self, state: Any, starts: Counter[int]) -> bool | None:
        """Start pending ClientApps; return True if no task is left, else None.

        A ClientApp that was killed before it reported its start is started again, up to ``STARTS``
        times in all. The message fails if the ClientApp cannot be started or ended by itself.
        ``starts``: their number so far by task.
        """
        for task in state.get_tasks(statuses=WAITING):
            if starts[task.task_id] == STARTS:
                why = f"{STARTS} ClientApps ended before they reported their start"
                self._fail(task, state, why)
                continue
            starts[task.task_id] += 1
            token = state.claim_task(task.task_id)
            line = [*self._program, "--clientappio-api-address", self.address, "--token", token]
            try:
                self._process = subprocess.Popen(
                    [*line, "--insecure", "--parent-pid", str(os.getpid())]
                )
            except OSError as error:
                self._fail(task, state, f"{line[0]} cannot be started: {error.strerror}")
        status = 0 if self._process is None else self._process.poll() or 0
        for task in state.get_tasks(statuses=STARTING) if status > 0 else ():
            why = f"the ClientApp ended with status {status} before it reported its start"
            self._fail(task, state, why)
        return not state.get_tasks(statuses=AT_WORK) or None

    def _fail(self, task: Any, state: Any, why: str) -> None:
        """End a task whose ClientApp cannot run; ``why`` is for this node's log and the server."""
        self._failure = why
        log.warning("run %d: %s", task.run_id, why)
        state.finish_task(task.task_id, FAILED, why)


def client_app() -> list[str]:
    """Return the command of a ClientApp with this node's checks, warm if it has a warm process.

    The cold process has the same checks. Flower's name shows in top and ps.
    """
    cold = [*own_program("owner.pinned", "program()"), pinned.PROGRAM]
    address = os.environ.get(warm_client.ADDRESS)
    return warm_client.command(address, pinned.PROGRAM, cold) if address else cold


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


def ensure_reply(run_id: int, state: Any, object_store: Any, failure: str = GONE) -> None:
    """Ensure that the run's message has exactly one reply, with all of its parts.

    Call it after the end of the ClientApp, which may have been killed before it took the message,
    or while it sent its reply. The first complete reply is kept. Without one, an error reply with
    the reason ``failure`` is stored. The parts of the message are deleted.
    """
    from flwr.app import Error
    from flwr.common.constant import ErrorCode
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    def is_complete(name: str) -> bool:
        objects = iterate_object_tree(object_store.get_object_tree(name))
        return all(object_store.get(item.object_id) for item in objects)

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
        memory: Any = importlib.import_module(type(state).__module__)
        memory.CLIENT_APP_CRASHED_ERROR = Error(ErrorCode.CLIENT_APP_CRASHED, failure)
        state._store_error_replies({run_id})
    for name in stored.keys() - set(replies):
        object_store.delete(name)


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of a SuperNode with ``arguments`` of ``flower-supernode``."""
    return [*own_program("supernode", "program()"), "--isolation", "process", *arguments]


def main() -> None:
    """Run as ``flower-supernode``; the first argument is the interpreter's ``-c``."""
    sys.argv[0] = PROGRAM
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(PROGRAM[:15])  # the name in top and ps
    guarded = pinned.PIN in os.environ or rules.RULES in os.environ
    if guarded and (why := pinned.fault(client_app())):
        sys.exit(f"error: {why}")
    from flwr.supernode.cli import flower_supernode

    pinned.without_colours()
    loop: Any = importlib.import_module(LOOP)
    node = Node()
    node.quiet = LEVEL not in os.environ
    loop.run_clientappio_api_grpc = node.listening(loop.run_clientappio_api_grpc)
    loop.register_signal_handlers = node.stopping(loop.register_signal_handlers)
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
