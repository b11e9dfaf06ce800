"""How packed payloads travel between the server and its clients: as they are, or sealed."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from common.config import Config
from common.journal import Failure
from common.records import array_bytes, count_bytes
from common.seal.body import NotAuthentic, encrypt
from common.seal.session import failed
from server_app.talk.exchange import exchange, one_line
from server_app.talk.hold import Shelf
from server_app.talk.seal import Seal

HELLO = "query.hello"
Messages = dict[int, Message]
"""Messages or replies by client."""
Exchanged = tuple[Messages, list[Failure]]
"""Good replies and failures, both in ascending order of k."""

log = logging.getLogger("flwr.fedmosaic")


class Channel(ABC):
    """Carries the packed payloads of one run of ``experiment``, and counts their bytes.

    ``traffic``: the bytes ``down`` and ``up``, and of these the numbers alone: ``arrays_down`` and
    ``arrays_up``. ``shelf``: where replies wait for their round's step.
    """

    def __init__(self, config: Config, experiment: str) -> None:
        self.config, self.experiment = config, experiment
        self.shelf = Shelf(Path(config.run.out), int(config.wire.max_mb * 1e6))
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
        return exchange(grid, messages, timeout, t, self.config.run.window, self.shelf)


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


@final
class SealedChannel(Channel):
    """Payloads travel encrypted and signed, and only authentic replies are used.

    Flower's SuperLink stores the first reply to a message, whoever sent it: a forged one takes the
    place of the honest one. So whoever has no authentic reply, though its time is not over, is
    asked once more under a new message id, which nobody else knows.
    """

    def __init__(self, config: Config, experiment: str, seal: Seal) -> None:
        super().__init__(config, experiment)
        self._seal = seal
        self._hello = RecordDict()  # the newest one
        self._met: dict[int, int] = {}  # which client has answered a hello, by node

    def hello(self, content: RecordDict, nodes: Iterable[int]) -> dict[int, RecordDict]:
        self._hello = content
        return self._seal.hello(content, self.experiment, nodes)

    def open_hello(self, node: int, content: RecordDict) -> RecordDict:
        self._met[node], opened = self._seal.meet(node, content)
        return opened

    def check_peer(self, node: int, k: int) -> None:
        if (key := self._met[node]) != k:
            raise ValueError(f"it says that it is client {k}, with client {key}'s key")

    def wrap(self, content: RecordDict, t: int, kind: str) -> Callable[[int], RecordDict]:
        body = encrypt(content)  # once, whoever gets it
        return lambda k: self._seal.address(body, self.experiment, t, k, kind)

    def exchange(self, grid: Grid, messages: Messages, timeout: float, t: int) -> Exchanged:
        """A client whose first reply was forged is among the failures even if its second one is
        good.
        """
        start = time.monotonic()
        good, failures, forged, lost = self._opened(grid, messages, timeout, t)
        in_time = time.monotonic() - start < timeout
        if doubtful := sorted({each.k for each in (*forged, *(lost if in_time else []))}):
            anew = {k: self._again(k, messages[k]) for k in doubtful}
            second = self._opened(grid, anew, timeout, t)
            good |= second[0]
            # an error reply is not signed: its word counts unless the client says otherwise
            lost = [each for each in lost if each.k not in doubtful or each.k in second[0]]
            failures += [each for found in second[1:] for each in found]
        self._seal.forget()
        failures += forged + lost
        return dict(sorted(good.items())), sorted(failures, key=lambda failure: failure.k)

    def _again(self, k: int, message: Message) -> Message:
        """A message to client k, or a hello, once more under another name."""
        about, node = message.metadata, message.metadata.dst_node_id
        if about.message_type == HELLO:
            content = self.hello(self._hello, [node])[node]
        else:
            content = self._seal.again(k)
            self.count("down", content)
        return Message(content, node, about.message_type, group_id=about.group_id)

    def _opened(
        self, grid: Grid, messages: Messages, timeout: float, t: int
    ) -> tuple[Messages, list[Failure], list[Failure], list[Failure]]:
        """Authentic replies; failures that clients vouch for; replies that are not authentic, or
        too large to find out; and who has no reply.
        """
        replies, lost = self._exchange(grid, messages, timeout, t)
        good: Messages = {}
        said, forged = list[Failure](), list[Failure]()
        for k in list(replies):
            reply, about = replies.pop(k), messages[k].metadata
            try:
                check_size(count_bytes(reply.content), self.config)
            except ValueError as error:
                forged.append(_failure(k, t, f"reply refused: {error}"))
                continue
            try:
                if about.message_type == HELLO:
                    content = self.open_hello(about.dst_node_id, reply.content)
                else:
                    content = self._seal.open(k, reply.content)
            except NotAuthentic as error:
                what = "the answer" if about.message_type == HELLO else f"client {k}'s reply"
                why = f"{what} is not authentic: the SuperLink or a registered node ({error})"
                log.warning(why)
                forged.append(_failure(k, t, why))
                continue
            except ValueError as error:
                said.append(_failure(k, t, f"reply refused: {error}"))
                continue
            self.count("up", reply.content, array_bytes(content))
            self.shelf.keep(content, count_bytes(content))
            reply.content = content
            if (words := failed(content)) is None:
                good[k] = reply
            else:
                said.append(_failure(k, t, words))
        return good, said, forged, lost


def _failure(k: int, t: int, reason: str) -> Failure:
    return Failure(k=k, round=t, reason=one_line(reason))


def check_size(size: int, config: Config) -> None:
    """Raise ``ValueError`` for a reply of more bytes than may be."""
    limit = config.wire.max_mb
    if size > limit * 1e6:
        raise ValueError(f"it has {size / 1e6:.1f} MB, wire.max-mb = {limit:g}")
