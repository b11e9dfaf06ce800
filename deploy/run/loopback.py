"""The loopback runtime: a Grid that calls the ClientApp on this machine.

Messages go through Flower's own serialiser to a pool of worker processes and back, so a client sees
exactly what it would see over a network. Which worker serves which client changes nothing: a client
keeps its state on disk, and everything random has a name.
"""

import multiprocessing
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count, groupby
from multiprocessing import connection
from types import ModuleType
from typing import Self, final

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from common import progress
from common.errors import first_line, logged_to
from common.progress import Reporter
from common.settings.config import Value
from deploy.flower.messages import empty, from_bytes, head, nameless_run, packed, to_bytes
from deploy.run import preload

RUN_ID = 1
WORKER_LOST = 5
"""Flower's code for a node that went away."""

KEPT = 4  #: contents that are held in packed form, for further messages with the same one

QUICK = "query", "evaluate"
"""Kinds of messages whose replies are small and soon there: several go to a process at once."""

GROUP, GROUPS = 16, 8  #: at most so many at once, and of those sent together at most this part

LINE = 400  #: bytes of a line of progress; a pipe takes at least 512 in one write

NodeConfig = dict[str, Value]
Letter = tuple[bytes, int, NodeConfig]  #: a message without its content, node, the node's config
Work = tuple[bytes, list[Letter]]  #: what some messages hold, and these


class Nodes(Grid, ABC):
    """``clients`` nodes, node k + 1 being client k, whose messages are answered by ``_submit``.

    ``node_configs`` holds settings of single clients beyond ``partition-id`` and
    ``num-partitions``.
    """

    lost: tuple[type[Exception], ...]  #: what a client's process that is gone raises

    def __init__(
        self,
        clients: int,
        run_config: Mapping[str, Value],
        node_configs: Mapping[int, Mapping[str, Value]] | None = None,
    ) -> None:
        self._run_config = dict(run_config)
        self._nodes: dict[int, NodeConfig] = {
            k + 1: {"partition-id": k, "num-partitions": clients, **(node_configs or {}).get(k, {})}
            for k in range(clients)
        }
        self._numbers = count(1)
        self._answers: dict[str, tuple[Future[list[bytes]], int]] = {}  # which of these
        self._questions: dict[str, bytes] = {}  # without what they hold
        self._done: set[str] = set()
        self._packed: dict[int, tuple[RecordDict, bytes]] = {}

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """End what is at work."""

    @abstractmethod
    def _submit(self, work: Work) -> Future[list[bytes]]:
        """Have messages answered, one after the other."""

    def set_run(self, run: object) -> None:
        """The run is always the same one here."""

    run = property(lambda _: nameless_run(RUN_ID))

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        size = min(max(len(messages) // GROUPS, 1), GROUP)
        names: list[str] = []
        for _, alike in groupby(messages, lambda message: id(message.content)):
            group = list(alike)
            quick = group[0].metadata.message_type.split(".")[0] in QUICK
            step = size if quick else 1
            for at in range(0, len(group), step):
                names += self._push(group[at : at + step])
        return names

    def _push(self, group: list[Message]) -> list[str]:
        """Send messages that hold the same; their names."""
        names = [str(next(self._numbers)) for _ in group]
        heads = [head(message, RUN_ID, name) for message, name in zip(group, names, strict=True)]
        self._questions |= zip(names, heads, strict=True)
        nodes = [message.metadata.dst_node_id for message in group]
        letters = [(text, node, self._nodes[node]) for text, node in zip(heads, nodes, strict=True)]
        answer = self._submit((self._content(group[0]), letters))
        self._answers |= {name: (answer, at) for at, name in enumerate(names)}
        answer.add_done_callback(lambda _: self._done.update(names))
        return names

    def _content(self, message: Message) -> bytes:
        """What it holds, packed; once for the messages that follow with the same."""
        content = message.content
        if id(content) not in self._packed:
            if len(self._packed) == KEPT:
                del self._packed[next(iter(self._packed))]
            self._packed[id(content)] = content, packed(content)
        return self._packed[id(content)][1]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for name in [name for name in message_ids if name in self._done]:
            self._done.discard(name)
            (answer, at), question = self._answers.pop(name), self._questions.pop(name)
            try:
                replies.append(from_bytes(answer.result()[at]))
            except self.lost as error:
                reason = f"the client's process was lost: {first_line(error)}"
                replies.append(Message(Error(WORKER_LOST, reason), reply_to=empty(question)))
        if not self._answers:
            self._packed.clear()
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        names = list(self.push_messages(messages))
        wait({self._answers[name][0] for name in names}, timeout=timeout)
        return self.pull_messages(names)


@final
class Loopback(Nodes):
    """``Nodes`` that ``workers`` processes of this machine serve.

    ``workers = 0`` serves them in this process, one after the other. ``shares``: the part of a
    device's memory that each worker may take, by the device's name.
    """

    lost = (BrokenProcessPool, MemoryError, OSError)

    def __init__(
        self,
        clients: int,
        run_config: Mapping[str, Value],
        *,
        workers: int,
        node_configs: Mapping[int, Mapping[str, Value]] | None = None,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(clients, run_config, node_configs)
        self._shares = dict(shares or {})
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._lines, self._line_end = multiprocessing.Pipe(duplex=False)  # workers' progress

    def __exit__(self, *error: object) -> None:
        """End the workers, also those that are at work."""
        pool, self._pool = self._pool, None
        if pool is not None:
            processes = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()
            for process in processes:
                process.join()

    def _submit(self, work: Work) -> Future[list[bytes]]:
        if self._workers == 0:
            answer: Future[list[bytes]] = Future()
            answer.set_result(serve(*work, self._run_config))
            return answer
        for _ in range(2):
            if self._pool is None:
                self._pool = _start_pool(
                    self._workers, self._run_config, self._shares, self._line_end
                )
            try:
                with _no_main():
                    return self._pool.submit(_serve_in_worker, *work)
            except BrokenProcessPool:  # a worker was killed earlier; the next pool is whole again
                self.__exit__()
        raise AssertionError("a new pool takes work")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        while self._lines.poll():
            progress.reporter().note = self._lines.recv_bytes().decode()
        return super().pull_messages(message_ids)


@contextmanager
def _no_main() -> Iterator[None]:
    """A block in which ``multiprocessing`` sees no main module.

    It would have every worker run the user's script again, and without a guard ``if __name__ ==
    "__main__"`` the run in it fails. ``multiprocessing`` has no option for this.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start_pool(
    workers: int,
    run_config: dict[str, Value],
    shares: dict[str, float],
    line_end: connection.Connection | None = None,
) -> ProcessPoolExecutor:
    """Workers fork from a server that has imported what they need, so each starts in milliseconds.

    The server is the process's own, for all of its runs.
    """
    preload.begin()
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("forkserver"),
        initializer=_begin_worker,
        initargs=(run_config, shares, line_end),
    )


_run_config: dict[str, Value] = {}
"""The run's, in a worker."""


def _begin_worker(
    run_config: dict[str, Value],
    shares: dict[str, float],
    line_end: connection.Connection | None,
) -> None:
    """Leave Ctrl-C to the parent, do not outlive it, and keep to a share of each GPU's memory.

    ``line_end``: the pipe that takes lines of progress.
    """
    _run_config.update(run_config)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if line_end is not None:
        os.set_blocking(line_end.fileno(), False)  # no worker waits for a full pipe
        progress.report_to(Reporter(partial(_send_line, line_end)))
    if shares:
        from common.training import device  # imports torch

        for name, share in shares.items():
            device.limit(device.choose(name), share)


def _send_line(line_end: connection.Connection, line: str) -> None:
    with suppress(OSError):  # a full pipe, or no parent: the line is lost
        line_end.send_bytes(line.encode()[:LINE])  # one write, so that lines of workers do not mix


def _end_with_parent() -> None:
    """Wait for the end of the process that began the pool, by SIGKILL too, and follow it."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    connection.wait([parent.sentinel])
    os._exit(1)


def _serve_in_worker(content: bytes, letters: list[Letter]) -> list[bytes]:
    with logged_to(str(_run_config["out"])):
        return serve(content, letters, _run_config)


def serve(content: bytes, letters: list[Letter], run_config: dict[str, Value]) -> list[bytes]:
    """What a SuperNode's client process does with a message; for each in turn.

    What they all hold is read once: a client copies the numbers that it takes from it.
    """
    from client_app.app import app

    held = from_bytes(letters[0][0] + content).content
    replies = []
    for about, node, config in letters:
        message = empty(about)
        message.content = held
        context = Context(RUN_ID, node, config, RecordDict(), dict(run_config))
        replies.append(to_bytes(app(message, context)))
    return replies
