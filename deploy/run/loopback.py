"""The loopback runtime: a Grid that calls the ClientApp on this machine.

Messages go through Flower's own serialiser to a pool of worker processes and back, so a client
receives exactly the message that it would receive over a network. Results do not depend on which
worker serves which client: client states are on disk, and every random stream has a name.
"""

import logging
import multiprocessing
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from itertools import count, groupby
from multiprocessing import connection
from typing import Self, final

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from client_app.node import IN_STATE
from common import progress
from common.errors import first_line, logged_to
from common.progress import Reporter
from common.settings.config import Value
from deploy.flower.messages import empty, from_bytes, head, nameless_run, packed, to_bytes
from deploy.run import preload

RUN_ID = 1
WORKER_LOST = 5
"""Flower's code for a node that went away."""

KEPT = 4  #: serialized contents that are cached for further messages with equal content

QUICK = "query", "evaluate"
"""Message types with small, fast replies: a worker receives several of these messages at once."""

GROUP, GROUPS = 16, 8
"""Most messages in a group, and the least number of groups for messages that are sent together."""

LINE = 400  #: most bytes of a progress line; a pipe takes at least 512 in one write

FIXED: Mapping[str, Value] = {"ledger": IN_STATE}
"""Settings of every node: a simulated client answers a repeated experiment in another folder."""

NodeConfig = dict[str, Value]
Envelope = tuple[bytes, int, NodeConfig]  #: message without its content, node id, node config
Work = tuple[bytes, list[Envelope]]  #: content that several messages share, and their envelopes


class Nodes(Grid, ABC):
    """Grid of ``clients`` nodes, where node k + 1 is client k; ``_submit`` serves their messages.

    ``node_configs``: settings of single clients in addition to ``partition-id`` and
    ``num-partitions``.
    """

    lost: tuple[type[Exception], ...]  #: errors that mean that a client's process is gone

    def __init__(
        self,
        clients: int,
        run_config: Mapping[str, Value],
        node_configs: Mapping[int, Mapping[str, Value]] | None = None,
    ) -> None:
        self._run_config, own = dict(run_config), node_configs or {}
        self._nodes: dict[int, NodeConfig] = {
            k + 1: {**FIXED, "partition-id": k, "num-partitions": clients, **own.get(k, {})}
            for k in range(clients)
        }
        self._numbers = count(1)
        self._replies: dict[str, tuple[Future[list[bytes]], int]] = {}  # with index in the group
        self._heads: dict[str, bytes] = {}  # sent messages without their contents
        self._done: set[str] = set()
        self._packed: dict[int, tuple[RecordDict, bytes]] = {}

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """End all work that is under way."""

    @abstractmethod
    def _submit(self, work: Work) -> Future[list[bytes]]:
        """Serve messages one after another; return their serialized replies."""

    def set_run(self, run: object) -> None:
        """Do nothing, because there is only one run."""

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
        """Send messages with equal content and return their names."""
        names = [str(next(self._numbers)) for _ in group]
        heads = [head(message, RUN_ID, name) for message, name in zip(group, names, strict=True)]
        self._heads |= zip(names, heads, strict=True)
        nodes = [message.metadata.dst_node_id for message in group]
        pairs = zip(heads, nodes, strict=True)
        envelopes = [(text, node, self._nodes[node]) for text, node in pairs]
        replies = self._submit((self._content(group[0]), envelopes))
        self._replies |= {name: (replies, at) for at, name in enumerate(names)}
        replies.add_done_callback(lambda _: self._done.update(names))
        return names

    def _content(self, message: Message) -> bytes:
        """Return the serialized content of a message; messages with equal content share it."""
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
            (group, at), sent = self._replies.pop(name), self._heads.pop(name)
            try:
                replies.append(from_bytes(group.result()[at]))
            except self.lost as error:
                reason = f"the client's process was lost: {first_line(error)}"
                replies.append(Message(Error(WORKER_LOST, reason), reply_to=empty(sent)))
        if not self._replies:
            self._packed.clear()
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        names = list(self.push_messages(messages))
        wait({self._replies[name][0] for name in names}, timeout=timeout)
        return self.pull_messages(names)


@final
class Loopback(Nodes):
    """``Nodes`` that ``workers`` processes of this machine serve.

    With ``workers = 0`` this process serves them one after another. ``shares``: the part of a
    device's memory that each worker may take, by device name.
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
        """Kill all workers, busy ones included."""
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
            replies: Future[list[bytes]] = Future()
            replies.set_result(serve(*work, self._run_config))
            return replies
        for _ in range(2):
            if self._pool is None:
                self._pool = _start_pool(
                    self._workers, self._run_config, self._shares, self._line_end
                )
            try:
                with preload.without_main():
                    return self._pool.submit(_serve_in_worker, *work)
            except BrokenProcessPool:  # a worker was killed; the next pool is complete
                self.__exit__()
        raise AssertionError("a new pool takes work")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        while self._lines.poll():
            progress.reporter().note = self._lines.recv_bytes().decode()
        return super().pull_messages(message_ids)


def play(flat: Mapping[str, Value], nodes: Nodes) -> None:
    """Run the ServerApp in this process, with ``nodes`` as its clients."""
    from server_app.app import app
    from server_app.messaging.sealed import TRUST

    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.ERROR)  # the progress display shows the same information
    try:
        with logged_to(str(flat["out"])), preload.environment(TRUST, ""), nodes as grid:
            app(grid, Context(RUN_ID, 0, {}, RecordDict(), dict(flat)))
    finally:
        log.setLevel(level)


def _start_pool(
    workers: int,
    run_config: dict[str, Value],
    shares: dict[str, float],
    line_end: connection.Connection | None = None,
) -> ProcessPoolExecutor:
    """Start workers that fork from a server with all imports done, each within milliseconds.

    This process has one such server for all of its runs.
    """
    preload.begin()
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("forkserver"),
        initializer=_begin_worker,
        initargs=(run_config, shares, line_end),
    )


_run_config: dict[str, Value] = {}
"""Run config in a worker process."""


def _begin_worker(
    run_config: dict[str, Value],
    shares: dict[str, float],
    line_end: connection.Connection | None,
) -> None:
    """Set up a worker, and limit its memory of each GPU.

    ``line_end``: the pipe to which progress lines are written.
    """
    _run_config.update(run_config)
    preload.settle()
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


def _serve_in_worker(content: bytes, envelopes: list[Envelope]) -> list[bytes]:
    with logged_to(str(_run_config["out"])):
        return serve(content, envelopes, _run_config)


def serve(content: bytes, envelopes: list[Envelope], run_config: dict[str, Value]) -> list[bytes]:
    """Call the ClientApp for each message, as a SuperNode's client process does; return replies.

    The shared content is read once, because a client copies the numbers that it takes from it.
    """
    from client_app.app import app

    shared = from_bytes(envelopes[0][0] + content).content
    replies = []
    for text, node, config in envelopes:
        message = empty(text)
        message.content = shared
        context = Context(RUN_ID, node, config, RecordDict(), dict(run_config))
        replies.append(to_bytes(app(message, context)))
    return replies
