"""The ClientApp: it calls the method's client half for each message.

Heavy modules are imported inside the function, because in a deployment every message starts a
process.
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
"""Flower's error code for an exception in a ClientApp."""

app = ClientApp()


@app.query("hello")
@app.train()
@app.train("second")
@app.evaluate()
@app.evaluate("statistics")
def answer(message: Message, context: Context) -> Message:
    """Return the reply to ``message``; after an exception, an error with a one-line reason."""
    from client_app import methods
    from client_app.participant import Participant
    from client_app.seal import open_message
    from common import progress
    from common.exchange import protocol
    from common.parse import parse

    progress.without_colours()
    received: OpenedMessage | None = None
    trusted = True
    try:
        received = open_message(message, context)
        received.check_settings(context.run_config)  # before parse imports what they name
        config = parse(context.run_config)
        trusted = config.privacy.mode != "local"
        half = methods.half(config.run.method)
        kinds: dict[str, tuple[type[ToClient] | None, Callable[..., ToServer]]] = {
            "query.hello": (protocol.CensusRequest, half.hello),
            "train": (half.request_type, half.trained),
            "train.second": (half.second_request_type, half.trained_second),
            "evaluate": (protocol.ScoreRequest, half.scored),
            "evaluate.statistics": (protocol.StatisticsRequest, half.measure),
        }
        if config.secure.on:
            kinds["train.second"] = protocol.UnmaskRequest, half.remove_masks
        expected, work = kinds[message.metadata.message_type]
        if expected is None:
            raise ValueError(f"method = {config.run.method!r} has one exchange in a round")
        request = expected.unpack(received.content)
        if not request.experiment:
            raise ValueError("the message has no envelope")
        received.check_experiment(request.experiment)
        if request.t > config.run.rounds:
            raise ValueError(f"the message is for round {request.t} of {config.run.rounds}")
        participant = Participant(config, context.node_config, request.experiment)
        received.admit()

        def stamped() -> ToServer:
            reply = work(half(participant), request)
            # The census of round t comes after that round.
            t = request.t + isinstance(request, protocol.CensusRequest)
            return reply.stamped(request, participant.k, participant.kept(t))

        with progress.block(f"client {participant.k}"):
            kind = message.metadata.message_type
            settings = context.run_config
            if not (config.secure.on and isinstance(request, protocol.Request)):
                reply = participant.answer(kind, request, settings, stamped)
            elif isinstance(request, protocol.UnmaskRequest):  # the ledger has its round already
                reply = stamped()
            else:  # without masks, all attempts of a round have the same request and reply
                plain = request.model_copy(update={"secure": None})
                reply = participant.answer(kind, plain, settings, stamped)
                assert isinstance(reply, protocol.Reply), "of a request that trains"
                masked = half(participant).add_masks(request, reply, settings)
                reply = masked.stamped(request, participant.k, reply.kept)
        return Message(received.answer(reply.pack()), reply_to=message)
    except Exception as error:  # the server needs a reply after every error
        reason = _reason(error, message.metadata.message_type, context, trusted=trusted)
        if received is not None and (content := received.failure(reason)) is not None:
            return Message(content, reply_to=message)
        return Message(Error(code=CLIENT_FAILED, reason=reason), reply_to=message)


def _reason(error: Exception, kind: str, context: Context, *, trusted: bool) -> str:
    """Return the line about an error for the server, and log the error with its traceback.

    ``trusted``: whether the server may learn something of this client without noise.
    """
    from client_app.store import NotAnswered
    from common.errors import LONGEST, line
    from common.files import Damaged

    known = isinstance(error, Damaged | NotAnswered)  # its message needs no traceback
    log.error("client failed on %s%s", kind, f": {error}" if known else "", exc_info=not known)
    reason = line(error, LONGEST, typed=True)
    if kind == "query.hello":  # before the census the server cannot map a node to a client
        return f"client {context.node_config.get('partition-id', '?')}: {reason}"
    return reason if trusted else "the client failed, its own log has the reason"
