"""The post: packs, stamps and addresses what is sent; opens and checks what comes back.

Opening checks everything that a client sent. Flower has received a reply by then, so
``wire.max-mb`` does not save bandwidth but what unpacking would take on top.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, final

from flwr.app import Message, RecordDict

from common.errors import LONGEST, line
from common.exchange.protocol import CensusRequest, ClientInfo, ToClient, ToServer
from common.exchange.records import Records, array_bytes, count_bytes, tensors
from common.journal import Failure
from common.settings.config import Config
from common.training import tree
from server_app.messaging.channel import HELLO, Channel, check_size
from server_app.method import Client

R = TypeVar("R", bound=ToServer)
log = logging.getLogger("flwr.fedmosaic")


@final
class Messenger:
    """The messages of one run: payloads for clients, and what they answer, over a ``channel``."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.config = channel, channel.config
        self.after = 0  #: the round that the run goes on after
        self.kept: dict[int, int] = {}  #: of which round each client's newest state is

    @property
    def experiment(self) -> str:
        return self.channel.experiment

    def make_messages(
        self, t: int, kind: str, payloads: Iterable[tuple[Client, ToClient]]
    ) -> dict[int, Message]:
        """Messages of type ``kind`` by client. A payload for several clients is packed once."""
        packed: dict[int, tuple[ToClient, int, Callable[[int], RecordDict]]] = {}
        found: dict[int, Message] = {}
        for client, payload in payloads:
            if id(payload) not in packed:
                content = payload.stamped(self.experiment, t).pack()
                wrap = self.channel.wrap(content, t, kind)
                packed[id(payload)] = payload, array_bytes(content), wrap
            _, arrays, wrap = packed[id(payload)]
            content = wrap(client.k)
            self.channel.count("down", content, arrays)
            found[client.k] = Message(content, client.node, kind, group_id=str(t))
        return found

    def census_messages(
        self, nodes: Sequence[int], clients: int, ttl: float | None = None
    ) -> dict[int, Message]:
        """The census question to ``nodes``, by place in that list."""
        content = CensusRequest(clients=clients).stamped(self.experiment, self.after).pack()
        wrapped = self.channel.hello(content, nodes)
        return {i: Message(wrapped[node], node, HELLO, ttl=ttl) for i, node in enumerate(nodes)}

    def info(self, node: int, reply: Message) -> ClientInfo:
        """A node's answer to the hello. Raises ``ValueError`` for one that cannot be."""
        info = open_reply(reply, ClientInfo, self.config)
        self.channel.check_peer(node, info.k)
        return info

    def open(
        self,
        t: int,
        replies: Iterable[Message],
        kind: type[R],
        clients: Sequence[Client],
        check: Callable[[Client, R], None] = lambda client, payload: None,
        what: str = "reply",
    ) -> tuple[list[tuple[Client, R]], list[Failure]]:
        """The good replies in order of k; one that is not good is a failure and enters nothing.

        The first reply of each client's node counts; what no client's node sent is left out.
        Whatever a reply makes our code raise is the fault of the reply: a run must not end by it.
        """
        ks = {client.node: client.k for client in clients}
        first: dict[int, Message] = {}
        for reply in replies:
            if reply.has_content() and reply.metadata.src_node_id in ks:
                first.setdefault(ks[reply.metadata.src_node_id], reply)
        good: list[tuple[Client, R]] = []
        failures: list[Failure] = []
        for k in sorted(first):
            try:
                payload = open_reply(first[k], kind, self.config)
                payload.check_envelope(self.experiment, t, k)
                check_finite(payload)
                check(clients[k], payload)
                good.append((clients[k], payload))
                self.kept[k] = max(self.kept.get(k, 0), min(payload.kept, t))
            except Exception as error:
                if not isinstance(error, ValueError):
                    log.exception("client %d: %s refused", k, what)
                reason = f"{what} refused: {line(error, LONGEST)}"
                failures.append(Failure(k=k, round=t, reason=reason))
        return good, failures


def open_reply(reply: Message, kind: type[R], config: Config) -> R:
    """The payload of a reply. Raises ``ValueError`` for one that is too large or is no ``kind``."""
    check_size(count_bytes(reply.content), config)
    return kind.unpack(reply.content)


def check_finite(reply: Records) -> None:
    """Raise ``ValueError`` unless all numbers of all tensors are finite."""
    for path, tensor in tensors(reply):
        if not tree.finite(tensor):
            raise ValueError(f"{path!r} has values that are not finite")
