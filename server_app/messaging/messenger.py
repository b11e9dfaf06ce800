"""The messenger: makes messages from payloads, and opens and checks replies.

Opening checks everything that a client sent. Flower has already received the reply by then:
``wire.max-mb`` saves no bandwidth, only the memory that unpacking would add.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, final

from flwr.app import Message, RecordDict

from common import progress
from common.errors import LONGEST, line
from common.exchange import tree
from common.exchange.protocol import CensusRequest, ClientInfo, ToClient, ToServer
from common.exchange.records import Records, array_bytes, count_bytes, tensors
from common.journal import Failure, FailureKind
from common.settings.config import Config
from server_app.messaging.channel import CENSUS, Channel, check_size
from server_app.method import Client

R = TypeVar("R", bound=ToServer)
log = logging.getLogger("flwr.fedmosaic")


@final
class Messenger:
    """Makes the messages of one run and opens the replies, over a ``channel``."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.config = channel, channel.config
        self.after = 0  #: last complete round of a resumed run
        self.moved: dict[int, tuple[int, int]] = {}
        """Bytes of the arrays in the payloads of each client's newest exchange, down and up. They
        do not depend on seals and on the experiment's name."""
        self.kept: dict[int, int] = {}  #: round of each client's newest state, by client

    @property
    def experiment(self) -> str:
        return self.channel.experiment

    def make_messages(
        self, t: int, kind: str, payloads: Iterable[tuple[Client, ToClient]]
    ) -> dict[int, Message]:
        """Return messages of type ``kind`` by client; pack a payload for several clients once."""
        packed: dict[int, tuple[ToClient, int, Callable[[int], RecordDict]]] = {}
        messages: dict[int, Message] = {}
        for client, payload in payloads:
            if id(payload) not in packed:
                content = payload.stamped(self.experiment, t).pack()
                wrap = self.channel.wrap(content, t, kind)
                packed[id(payload)] = payload, array_bytes(content), wrap
            _, arrays, wrap = packed[id(payload)]
            content, self.moved[client.k] = wrap(client.k), (arrays, 0)
            self.channel.count("down", content, arrays)
            messages[client.k] = Message(content, client.node, kind, group_id=str(t))
        return messages

    def census_messages(
        self,
        nodes: Sequence[int],
        clients: int,
        ttl: float | None = None,
        *,
        forget: bool = False,
    ) -> dict[int, Message]:
        """Return census requests to ``nodes``, by position in that list; ``ttl`` in seconds.

        ``clients``: number of clients in the roster; ``forget``: as in ``CensusRequest``.
        """
        content = (
            CensusRequest(clients=clients, forget=forget)
            .stamped(self.experiment, self.after)
            .pack()
        )
        wrapped = self.channel.census_requests(content, nodes)
        return {i: Message(wrapped[node], node, CENSUS, ttl=ttl) for i, node in enumerate(nodes)}

    def info(self, node: int, reply: Message) -> ClientInfo:
        """Return the content of a node's census reply. Raises ``ValueError`` if it is invalid."""
        info = open_reply(reply, ClientInfo, self.config)
        self.channel.check_client(node, info.k)
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
        """Return the valid replies of type ``kind`` in order of k, and failures for the others.

        The first reply of each client's node counts; replies of other nodes are ignored. Every
        exception that a reply causes is a failure of that reply, so that no reply can end a run.
        """
        ks = {client.node: client.k for client in clients}
        by_k = {client.k: client for client in clients}
        first: dict[int, Message] = {}
        for reply in replies:
            if reply.has_content() and reply.metadata.src_node_id in ks:
                first.setdefault(ks[reply.metadata.src_node_id], reply)
        good: list[tuple[Client, R]] = []
        failures: list[Failure] = []
        for k in progress.steps(sorted(first), f"check of {what}"):
            self.moved[k] = self.moved.get(k, (0, 0))[0], array_bytes(first[k].content)
            try:
                payload = open_reply(first[k], kind, self.config)
                payload.check_envelope(self.experiment, t, k)
                check_finite(payload)
                check(by_k[k], payload)
                good.append((by_k[k], payload))
                self.kept[k] = max(self.kept.get(k, 0), min(payload.kept, t))
            except Exception as error:
                if not isinstance(error, ValueError):
                    log.exception("client %d: %s refused", k, what)
                reason = f"{what} refused: {line(error, LONGEST)}"
                why: FailureKind = "diverged" if isinstance(error, NotFinite) else "refused"
                failures.append(Failure(k=k, round=t, reason=reason, kind=why))
        return good, failures


def open_reply(reply: Message, kind: type[R], config: Config) -> R:
    """Return the payload of a reply. Raises ``ValueError`` if it is too large or not a ``kind``."""
    check_size(count_bytes(reply.content), config)
    return kind.unpack(reply.content)


class NotFinite(ValueError):
    """Error for a reply with numbers that are not finite: the client's training diverged."""


def check_finite(reply: Records) -> None:
    """Raise ``NotFinite`` unless all numbers of all tensors are finite."""
    for path, tensor in tensors(reply):
        if not tree.finite(tensor):
            raise NotFinite(f"{path!r} has values that are not finite")
