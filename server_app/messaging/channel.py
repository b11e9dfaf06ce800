"""Channels carry packed payloads between server and clients: plain, or sealed (``sealed.py``)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from common import progress
from common.exchange.records import array_bytes, count_bytes
from common.journal import Failure
from common.settings.config import Config
from server_app.messaging.exchange import Inbox, exchange
from server_app.messaging.reply_files import ReplyStore

CENSUS = "query.hello"  #: message type of a census request
Messages = dict[int, Message]
"""Messages or replies by client."""
Exchanged = tuple[Messages, list[Failure]]
"""Good replies and failures, both in ascending order of k."""


class Channel(ABC):
    """Base class: carries the packed payloads of one run, ``experiment``, and counts their bytes.

    ``traffic``: the bytes ``down`` and ``up``, and the bytes of arrays among them, ``arrays_down``
    and ``arrays_up``. ``store``: stores replies until the aggregation step.
    """

    def __init__(self, config: Config, experiment: str) -> None:
        self.config, self.experiment = config, experiment
        self.store = ReplyStore(Path(config.run.out), int(config.wire.max_mb * 1e6))
        self.traffic: dict[str, int] = {}
        self.seconds: dict[int, float] = {}  #: measured time of each reply, since the last reset
        self._up: dict[int, tuple[int, int]] = {}  #: bytes of replies that are not counted yet
        self.waiting: Callable[[], None] = lambda: None  #: called often while replies are missing

    def count(self, way: str, content: RecordDict, arrays: int = 0) -> None:
        """Add the bytes of a payload to ``traffic``; ``arrays`` of them belong to arrays."""
        self._add(way, count_bytes(content), arrays)

    def receive(self, k: int) -> None:
        """Count the bytes of client k's reply, which ``arrived`` returned before, if there is one.

        So they count when the reply is used, whenever it came.
        """
        if k in self._up:
            self._add("up", *self._up.pop(k))

    def _add(self, way: str, size: int, arrays: int) -> None:
        for name, more in ((way, size), (f"arrays_{way}", arrays)):
            self.traffic[name] = self.traffic.get(name, 0) + more

    @abstractmethod
    def census_requests(self, content: RecordDict, nodes: Iterable[int]) -> dict[int, RecordDict]:
        """Return the content of the census message for each node."""

    @abstractmethod
    def open_census_reply(self, node: int, content: RecordDict) -> RecordDict:
        """Return a node's packed reply. Raises ``NotAuthentic`` if no registered client sent it."""

    @abstractmethod
    def check_client(self, node: int, k: int) -> None:
        """Raise ``ValueError`` unless the node that replied to the census is client k."""

    @abstractmethod
    def wrap(self, content: RecordDict, t: int, kind: str) -> Callable[[int], RecordDict]:
        """Return a function that maps client k to the content of its message."""

    @abstractmethod
    def exchange(self, grid: Grid, messages: Messages, timeout: float, t: int) -> Exchanged:
        """Send messages and return packed replies; for the arguments see ``exchange.exchange``."""

    def inbox(self, grid: Grid) -> Inbox:
        """Return an inbox for the jobs of asynchronous rounds."""
        return Inbox(grid, self.config.run.timeout, self.config.run.window, self.store)

    def post(self, inbox: Inbox, messages: Messages, t: int) -> None:
        """Add messages of round t to an inbox, for clients without a job in flight."""
        inbox.post(messages, t)

    @abstractmethod
    def arrived(self, inbox: Inbox) -> Exchanged:
        """Poll an inbox once; return packed replies and failures. A failure of a client that still
        has a job in the inbox does not end the job."""

    def _exchange(self, grid: Grid, messages: Messages, timeout: float, t: int) -> Exchanged:
        window = self.config.run.window
        with progress.block("replies", len(messages)) as show:

            def report(done: int) -> None:
                show(done)
                self.waiting()

            return exchange(grid, messages, timeout, t, window, self.store, report, self.seconds)


@final
class PlainChannel(Channel):
    """Channel without encryption and signatures: it cannot verify which client sent a reply."""

    def census_requests(self, content: RecordDict, nodes: Iterable[int]) -> dict[int, RecordDict]:
        return dict.fromkeys(nodes, content)

    def open_census_reply(self, node: int, content: RecordDict) -> RecordDict:
        return content

    def check_client(self, node: int, k: int) -> None: ...

    def wrap(self, content: RecordDict, t: int, kind: str) -> Callable[[int], RecordDict]:
        return lambda k: content

    def exchange(self, grid: Grid, messages: Messages, timeout: float, t: int) -> Exchanged:
        replies, failures = self._exchange(grid, messages, timeout, t)
        for reply in replies.values():
            self.count("up", reply.content, array_bytes(reply.content))
        return replies, failures

    def arrived(self, inbox: Inbox) -> Exchanged:
        inbox.poll()
        replies, failures = inbox.take()
        for k, reply in replies.items():
            self._up[k] = count_bytes(reply.content), array_bytes(reply.content)
        return replies, failures


def check_size(size: int, config: Config) -> None:
    """Raise ``ValueError`` for a reply of more than ``wire.max-mb``."""
    limit = config.wire.max_mb
    if size > limit * 1e6:
        raise ValueError(f"it has {size / 1e6:.1f} MB, wire.max-mb = {limit:g}")
