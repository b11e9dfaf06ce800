"""The post: packs, stamps, addresses and counts what is sent; opens and checks what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar, final

from flwr.app import Message, RecordDict

from common.config import Config
from common.journal import Failure
from common.protocol import ToClient, ToServer
from common.records import array_bytes, count_bytes
from server_app.method import Client
from server_app.talk.replies import check_finite, judge, open_reply

R = TypeVar("R", bound=ToServer)


@final
class Post:
    """The mail of one run of the experiment ``experiment``; ``traffic`` counts its bytes.

    ``traffic`` has ``down`` and ``up``, and of these the numbers alone: ``arrays_down`` and
    ``arrays_up``.
    """

    def __init__(self, config: Config, experiment: str) -> None:
        self.config, self.experiment = config, experiment
        self.traffic: dict[str, int] = {}

    def pack(self, payload: ToClient, t: int) -> RecordDict:
        """A payload with its envelope, as it travels; not counted."""
        return payload.stamped(self.experiment, t).pack()

    def letters(
        self, t: int, kind: str, payloads: Iterable[tuple[Client, ToClient]]
    ) -> dict[int, Message]:
        """Messages of type ``kind`` by client. A payload for several clients is packed once."""
        packed: dict[int, tuple[ToClient, RecordDict]] = {}
        found: dict[int, Message] = {}
        for client, payload in payloads:
            if id(payload) not in packed:
                packed[id(payload)] = payload, self.pack(payload, t)
            content = packed[id(payload)][1]
            self._count("down", content)
            found[client.k] = Message(content, client.node, kind, group_id=str(t))
        return found

    def open(
        self,
        t: int,
        replies: Mapping[int, Message],
        kind: type[R],
        clients: Sequence[Client],
        check: Callable[[Client, R], None],
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

        return good, judge(t, replies, accept, what)

    def _count(self, way: str, content: RecordDict) -> None:
        for name, size in ((way, count_bytes(content)), (f"arrays_{way}", array_bytes(content))):
            self.traffic[name] = self.traffic.get(name, 0) + size
