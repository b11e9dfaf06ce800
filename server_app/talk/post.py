"""The post: packs, stamps, addresses and counts what is sent; opens and checks what comes back.

Opening is where the server stops believing. Flower has received a reply by then, so ``wire.max-mb``
does not save its bandwidth; it saves what unpacking would take on top.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar, final

import torch
from flwr.app import Message, RecordDict

from common.config import Config
from common.journal import Failure
from common.protocol import ToClient, ToServer
from common.records import Records, array_bytes, count_bytes, tensors
from server_app.method import Client
from server_app.talk.exchange import one_line

R = TypeVar("R", bound=ToServer)
log = logging.getLogger("flwr.fedmosaic")


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

        return good, judge(t, replies, accept, what)

    def _count(self, way: str, content: RecordDict) -> None:
        for name, size in ((way, count_bytes(content)), (f"arrays_{way}", array_bytes(content))):
            self.traffic[name] = self.traffic.get(name, 0) + size


def open_reply(reply: Message, kind: type[R], config: Config) -> R:
    """The payload of a reply. Raises ``ValueError`` for one that is too large or is no ``kind``."""
    size, limit = count_bytes(reply.content), config.wire.max_mb
    if size > limit * 1e6:
        raise ValueError(f"it has {size / 1e6:.1f} MB, wire.max-mb = {limit:g}")
    return kind.unpack(reply.content)


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
            failures.append(Failure(k=k, round=t, reason=one_line(f"{what} refused: {error}")))
        except Exception as error:
            log.exception("client %d: %s refused", k, what)
            kind = type(error).__name__
            reason = one_line(f"{what} refused: {kind}: {error}")
            failures.append(Failure(k=k, round=t, reason=reason))
    return failures


def check_finite(up: Records) -> None:
    """Raise ``ValueError`` unless all numbers of all tensors are finite."""
    for path, tensor in tensors(up):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{path!r} has values that are not finite")
