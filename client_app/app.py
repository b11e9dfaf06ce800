"""The ClientApp: each message becomes a call of the method's client half.

Everything heavy is imported inside: in a deployment every message starts a process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

if TYPE_CHECKING:
    from client_app.participant import Participant
    from common.records import Records

log = logging.getLogger("flwr.fedmosaic")

CLIENT_FAILED = 2
"""Flower's code for an exception in a ClientApp."""

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """The census: who is there?"""
    from client_app.census import peer
    from common.protocol import Hello

    return _answer(message, context, Hello, peer)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of local work."""
    from client_app.methods import HANDLERS

    def work(participant: Participant, down: Any) -> Records:
        return HANDLERS[participant.config.run.method](participant).train(down)

    return _answer(message, context, None, work)


@app.train("second")
def second(message: Message, context: Context) -> Message:
    """The second exchange of a round, for methods that have one."""
    from client_app.methods import HANDLERS

    def work(participant: Participant, down: Any) -> Records:
        return HANDLERS[participant.config.run.method](participant).second(down)

    return _answer(message, context, None, work, of_method="receives_second")


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score models on the client's own test share."""
    from client_app.methods import HANDLERS
    from common.protocol import Ask

    def work(participant: Participant, ask: Ask) -> Records:
        return HANDLERS[participant.config.run.method](participant).score(ask)

    return _answer(message, context, Ask, work)


def _answer(
    message: Message,
    context: Context,
    kind: type[Records] | None,
    work: Callable[[Participant, Any], Records],
    of_method: str = "receives",
) -> Message:
    """Unpack, work, pack. An exception becomes an error reply of one line, the same everywhere.

    ``kind``: what the message holds; None: the message type that the method calls ``of_method``.
    """
    from client_app.methods import HANDLERS
    from client_app.participant import Participant
    from common.config import parse

    try:
        config = parse(context.run_config)
        payload: Any = (kind or getattr(HANDLERS[config.run.method], of_method)).unpack(
            message.content
        )
        participant = Participant(config, context.node_config, payload.experiment)
        return Message(work(participant, payload).pack(), reply_to=message)
    except Exception as error:  # whatever it was, the server must hear of it
        log.exception("client failed on %s", message.metadata.message_type)
        line = str(error).strip().partition("\n")[0]
        reason = f"{type(error).__name__}: {line}"[:500]
        return Message(Error(code=CLIENT_FAILED, reason=reason), reply_to=message)
