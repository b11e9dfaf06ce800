"""The ClientApp: each message becomes a call of the method's client half.

Everything heavy is imported inside: in a deployment every message starts a process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

if TYPE_CHECKING:
    from client_app.seal import OpenedMessage
    from common.exchange.protocol import ToClient, ToServer

log = logging.getLogger("flwr.fedmosaic")

CLIENT_FAILED = 2
"""Flower's code for an exception in a ClientApp."""

app = ClientApp()


@app.query("hello")
@app.train()
@app.train("second")
@app.evaluate()
@app.evaluate("statistics")
def answer(message: Message, context: Context) -> Message:
    """Unpack, work, stamp, pack. An exception becomes an error reply of one line, everywhere."""
    from client_app import methods
    from client_app.participant import Participant
    from client_app.seal import open_message
    from common import progress
    from common.errors import LONGEST, line
    from common.exchange import protocol
    from common.files import Damaged
    from common.settings.parse import parse

    received: OpenedMessage | None = None
    try:
        received = open_message(message, context)
        config = parse(context.run_config)
        half = methods.half(config.run.method)
        kinds: dict[str, tuple[type[ToClient] | None, Callable[..., ToServer]]] = {
            "query.hello": (protocol.CensusRequest, half.hello),
            "train": (half.request_type, half.trained),
            "train.second": (half.second_request_type, half.trained_second),
            "evaluate": (protocol.ScoreRequest, half.scored),
            "evaluate.statistics": (protocol.StatisticsRequest, half.measure),
        }
        expected, work = kinds[message.metadata.message_type]
        if expected is None:
            raise ValueError(f"method = {config.run.method!r} has one exchange in a round")
        question = expected.unpack(received.content)
        if not question.experiment:
            raise ValueError("the message has no envelope")
        received.check(context.run_config, question.experiment)
        participant = Participant(config, context.node_config, question.experiment)
        received.admit(participant.folder)
        with progress.block(f"client {participant.k}"):
            reply = work(half(participant), question)
        asked = question.t + isinstance(
            question, protocol.CensusRequest
        )  # a hello is after that round
        reply = reply.stamped(question, participant.k, participant.kept(asked))
        return Message(received.answer(reply.pack()), reply_to=message)
    except Exception as error:  # whatever it was, the server must hear of it
        about = message.metadata.message_type
        known = isinstance(error, Damaged)  # the line says all
        log.error("client failed on %s%s", about, f": {error}" if known else "", exc_info=not known)
        reason = line(error, LONGEST, typed=True)
        if about == "query.hello":  # the server does not know yet which client this is
            reason = f"client {context.node_config.get('partition-id', '?')}: {reason}"
        if received is not None and (content := received.failure(reason)) is not None:
            return Message(content, reply_to=message)
        return Message(Error(code=CLIENT_FAILED, reason=reason), reply_to=message)
