"""How packed payloads travel between the server and its clients: as they are here, or sealed
(``sealed.py``).
"""

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
from server_app.messaging.exchange import exchange
from server_app.messaging.reply_files import ReplyStore

HELLO = "query.hello"
Messages = dict[int, Message]
"""Messages or replies by client."""
Exchanged = tuple[Messages, list[Failure]]
"""Good replies and failures, both in ascending order of k."""


class Channel(ABC):
    """Carries the packed payloads of one run of ``experiment``, and counts their bytes.

    ``traffic``: the bytes ``down`` and ``up``, and of these the numbers alone: ``arrays_down`` and
    ``arrays_up``. ``store``: where replies wait for their round's step.
    """

    def __init__(self, config: Config, experiment: str) -> None:
        self.config, self.experiment = config, experiment
        self.store = ReplyStore(Path(config.run.out), int(config.wire.max_mb * 1e6))
        self.traffic: dict[str, int] = {}

    def count(self, way: str, content: RecordDict, arrays: int = 0) -> None:
        """Add what travels, ``arrays`` bytes of which are numbers."""
        for name, size in ((way, count_bytes(content)), (f"arrays_{way}", arrays)):
            self.traffic[name] = self.traffic.get(name, 0) + size

    @abstractmethod
    def hello(self, content: RecordDict, nodes: Iterable[int]) -> dict[int, RecordDict]:
        """The census question as it travels, by node."""

    @abstractmethod
    def open_hello(self, node: int, content: RecordDict) -> RecordDict:
        """A node's packed answer. Raises ``NotAuthentic`` unless a registered client gave it."""

    @abstractmethod
    def check_peer(self, node: int, k: int) -> None:
        """Raise ``ValueError`` unless the node that answered the hello is client k."""

    @abstractmethod
    def wrap(self, content: RecordDict, t: int, kind: str) -> Callable[[int], RecordDict]:
        """A function that returns the payload as it travels to client k."""

    @abstractmethod
    def exchange(self, grid: Grid, messages: Messages, timeout: float, t: int) -> Exchanged:
        """Send messages and return packed replies; the arguments are those of ``exchange``."""

    def _exchange(self, grid: Grid, messages: Messages, timeout: float, t: int) -> Exchanged:
        window = self.config.run.window
        with progress.block("replies", len(messages)) as report:
            return exchange(grid, messages, timeout, t, window, self.store, report)


@final
class PlainChannel(Channel):
    """Payloads travel as they are packed, and whoever answers is taken at its word."""

    def hello(self, content: RecordDict, nodes: Iterable[int]) -> dict[int, RecordDict]:
        return dict.fromkeys(nodes, content)

    def open_hello(self, node: int, content: RecordDict) -> RecordDict:
        return content

    def check_peer(self, node: int, k: int) -> None: ...

    def wrap(self, content: RecordDict, t: int, kind: str) -> Callable[[int], RecordDict]:
        return lambda k: content

    def exchange(self, grid: Grid, messages: Messages, timeout: float, t: int) -> Exchanged:
        replies, failures = self._exchange(grid, messages, timeout, t)
        for reply in replies.values():
            self.count("up", reply.content, array_bytes(reply.content))
        return replies, failures


def check_size(size: int, config: Config) -> None:
    """Raise ``ValueError`` for a reply of more bytes than may be."""
    limit = config.wire.max_mb
    if size > limit * 1e6:
        raise ValueError(f"it has {size / 1e6:.1f} MB, wire.max-mb = {limit:g}")
