"""The post: packs, stamps, addresses and counts what is sent; opens and checks what comes back.

Opening is where the server stops believing. Flower has received a reply by then, so ``wire.max-mb``
does not save its bandwidth; it saves what unpacking would take on top.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

from flwr.app import Message, RecordDict

from common import tree
from common.config import Config
from common.errors import LONGEST, first_line, line
from common.journal import Failure
from common.protocol import Hello, Peer, ToClient, ToServer
from common.records import Records, array_bytes, count_bytes, tensors
from common.seal import body
from common.seal.body import Body
from server_app.method import Client
from server_app.talk.hold import Shelf
from server_app.talk.seal import Seal

R = TypeVar("R", bound=ToServer)
HELLO = "query.hello"
log = logging.getLogger("flwr.fedmosaic")


@final
@dataclass(frozen=True)
class Sealed:
    """A payload that is encrypted once; ``arrays``: bytes of its numbers alone."""

    body: Body
    arrays: int


@final
class Post:
    """The mail of one run of the experiment ``experiment``; ``traffic`` counts its bytes.

    ``traffic`` has ``down`` and ``up``, and of these the numbers alone: ``arrays_down`` and
    ``arrays_up``. ``seal``: with it, messages are sealed and replies must be.
    """

    def __init__(self, config: Config, experiment: str, seal: Seal | None = None) -> None:
        self.config, self.experiment, self.seal = config, experiment, seal
        self.traffic: dict[str, int] = {}
        self.after = 0  #: the round that the run goes on after
        self.kept: dict[int, int] = {}  #: of which round each client's newest state is
        self._hello = Hello(clients=0)
        self._met: dict[int, int] = {}  # which client has answered a hello, by node

    def pack(self, payload: ToClient, t: int) -> RecordDict:
        """A payload with its envelope, as it travels; not counted."""
        return payload.stamped(self.experiment, t).pack()

    def letters(
        self, t: int, kind: str, payloads: Iterable[tuple[Client, ToClient]]
    ) -> dict[int, Message]:
        """Messages of type ``kind`` by client. A payload for several clients is packed once."""
        packed: dict[int, tuple[ToClient, RecordDict | Sealed]] = {}
        found: dict[int, Message] = {}
        for client, payload in payloads:
            if id(payload) not in packed:
                packed[id(payload)] = payload, self._close(self.pack(payload, t))
            content = packed[id(payload)][1]
            if isinstance(content, RecordDict):
                self._count("down", content)
            else:
                content = self._addressed(content, t, client.k, kind)
            found[client.k] = Message(content, client.node, kind, group_id=str(t))
        return found

    def _close(self, content: RecordDict) -> RecordDict | Sealed:
        if self.seal is None:
            return content
        return Sealed(body.encrypt(content), array_bytes(content))

    def _addressed(self, sealed: Sealed, t: int, k: int, kind: str) -> RecordDict:
        assert self.seal is not None
        content = self.seal.address(sealed.body, self.experiment, t, k, kind)
        self._add("down", count_bytes(content))
        self._add("arrays_down", sealed.arrays)
        return content

    def hellos(
        self, nodes: Sequence[int], clients: int, ttl: float | None = None
    ) -> dict[int, Message]:
        """The census question to ``nodes``, by place in that list; not counted."""
        self._hello = Hello(clients=clients)
        content = self.pack(self._hello, self.after)
        sealed = self.seal.hello(content, self.experiment, nodes) if self.seal and nodes else {}
        return {
            i: Message(sealed.get(node, content), node, "query.hello", ttl=ttl)
            for i, node in enumerate(nodes)
        }

    def again(self, k: int, message: Message) -> Message:
        """A sealed message to client k, or a hello, once more under another name."""
        assert self.seal is not None
        about = message.metadata
        if about.message_type == HELLO:
            return self.hellos([about.dst_node_id], self._hello.clients)[0]
        content = self.seal.again(k)
        self._add("down", count_bytes(content))
        return Message(content, about.dst_node_id, about.message_type, group_id=about.group_id)

    @property
    def shelf(self) -> Shelf:
        """Where replies wait for their round's step."""
        return Shelf(Path(self.config.run.out), int(self.config.wire.max_mb * 1e6))

    def unsealed(self, k: int, message: Message, reply: RecordDict) -> RecordDict:
        """What client k has sealed in answer to ``message``; for a hello, whoever answered.

        Raises ``NotAuthentic`` if it was not sealed for this; ``ValueError`` for other faults.
        """
        if self.seal is None:
            return reply
        if message.metadata.message_type == HELLO:
            node = message.metadata.dst_node_id
            self._met[node], content = self.seal.meet(node, reply)
            return content
        content = self.seal.open(k, reply)
        # what it holds is counted when it is opened
        self._add("up", count_bytes(reply) - count_bytes(content))
        return content

    def peer(self, node: int, reply: Message) -> Peer:
        """A node's answer to the hello. Raises ``ValueError`` for one that cannot be."""
        peer = open_reply(reply, Peer, self.config)
        if self.seal is not None and self._met[node] != peer.k:
            its = self._met[node]
            raise ValueError(f"it says that it is client {peer.k}, with client {its}'s key")
        return peer

    def open(
        self,
        t: int,
        replies: Mapping[int, Message],
        kind: type[R],
        clients: Sequence[Client],
        check: Callable[[Client, R], None] = lambda client, payload: None,
        what: str = "reply",
    ) -> tuple[list[tuple[Client, R]], list[Failure]]:
        """The good replies in order of k; one that is not good is a failure and enters nothing."""
        good: list[tuple[Client, R]] = []
        for reply in replies.values():
            self._count("up", reply.content)

        def accept(k: int, reply: Message) -> None:
            payload = open_reply(reply, kind, self.config)
            payload.check_envelope(self.experiment, t, k)
            check_finite(payload)
            check(clients[k], payload)
            good.append((clients[k], payload))
            self.kept[k] = min(payload.kept, t)

        return good, judge(t, replies, accept, what)

    def _count(self, way: str, content: RecordDict) -> None:
        self._add(way, count_bytes(content))
        self._add(f"arrays_{way}", array_bytes(content))

    def _add(self, name: str, size: int) -> None:
        self.traffic[name] = self.traffic.get(name, 0) + size


def open_reply(reply: Message, kind: type[R], config: Config) -> R:
    """The payload of a reply. Raises ``ValueError`` for one that is too large or is no ``kind``."""
    check_size(count_bytes(reply.content), config)
    return kind.unpack(reply.content)


def check_size(size: int, config: Config) -> None:
    """Raise ``ValueError`` for a reply of more bytes than may be."""
    limit = config.wire.max_mb
    if size > limit * 1e6:
        raise ValueError(f"it has {size / 1e6:.1f} MB, wire.max-mb = {limit:g}")


def judge(
    t: int, replies: Mapping[int, Message], accept: Callable[[int, Message], None], what: str
) -> list[Failure]:
    """``accept`` every reply, in order of k; each that it raises on becomes a failure.

    Whatever a reply makes our code raise is the fault of the reply: a run must not end by it.
    """
    failures: list[Failure] = []
    for k in sorted(replies):
        try:
            accept(k, replies[k])
        except ValueError as error:
            reason = first_line(error, LONGEST)
            failures.append(Failure(k=k, round=t, reason=f"{what} refused: {reason}"))
        except Exception as error:
            log.exception("client %d: %s refused", k, what)
            reason = line(error, LONGEST)
            failures.append(Failure(k=k, round=t, reason=f"{what} refused: {reason}"))
    return failures


def check_finite(up: Records) -> None:
    """Raise ``ValueError`` unless all numbers of all tensors are finite."""
    for path, tensor in tensors(up):
        if not tree.finite(tensor):
            raise ValueError(f"{path!r} has values that are not finite")
