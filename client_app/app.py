"""The ClientApp: each message becomes a call of the method's client half.

Everything heavy is imported inside: in a deployment every message starts a process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

if TYPE_CHECKING:
    from client_app.methods import AnyHandler
    from client_app.seal import Letter
    from common.protocol import ToClient, ToServer

    Q = TypeVar("Q", bound=ToClient)

log = logging.getLogger("flwr.fedmosaic")

CLIENT_FAILED = 2
"""Flower's code for an exception in a ClientApp."""

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """The census: who is there?"""
    from common.protocol import Hello

    return _answer(message, context, lambda half: Hello, lambda half, asked: half.hello(asked))


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of local work."""
    return _answer(
        message, context, lambda half: half.receives, lambda half, down: half.trained(down)
    )


@app.train("second")
def second(message: Message, context: Context) -> Message:
    """The second exchange of a round, for methods that have one."""
    return _answer(
        message,
        context,
        lambda half: half.receives_second,
        lambda half, down: half.trained_second(down),
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score models on the client's own test share."""
    from common.protocol import Ask

    return _answer(message, context, lambda half: Ask, lambda half, ask: half.scored(ask))


@app.evaluate("statistics")
def statistics(message: Message, context: Context) -> Message:
    """Measure what BatchNorm layers see of the client's training data."""
    from common.protocol import Measure

    return _answer(message, context, lambda half: Measure, lambda half, asked: half.measure(asked))


def _answer(
    message: Message,
    context: Context,
    kind: Callable[[type[AnyHandler]], type[Q] | None],
    work: Callable[[AnyHandler, Q], ToServer],
) -> Message:
    """Unpack, work, stamp, pack. An exception becomes an error reply of one line, everywhere.

    ``kind``: what the message holds, given the method's client half.
    """
    from client_app.methods import half
    from client_app.participant import Participant
    from client_app.seal import opened
    from common.errors import LONGEST, line
    from common.files import Damaged
    from common.parse import parse

    letter: Letter | None = None
    try:
        letter = opened(message, context)
        config = parse(context.run_config)
        handler = half(config.run.method)
        if (expected := kind(handler)) is None:
            raise ValueError(f"method = {config.run.method!r} has one exchange in a round")
        question = expected.unpack(letter.content)
        if not question.experiment:
            raise ValueError("the message has no envelope")
        letter.check(context.run_config, question.experiment)
        participant = Participant(config, context.node_config, question.experiment)
        letter.admit(participant.folder)
        answer = work(handler(participant), question)
        answer = answer.stamped(question, participant.k, participant.kept(question.t))
        return Message(letter.answer(answer.pack()), reply_to=message)
    except Exception as error:  # whatever it was, the server must hear of it
        about = message.metadata.message_type
        known = isinstance(error, Damaged)  # the line says all
        log.error("client failed on %s%s", about, f": {error}" if known else "", exc_info=not known)
        reason = line(error, LONGEST, typed=True)
        if about == "query.hello":  # the server does not know yet which client this is
            reason = f"client {context.node_config.get('partition-id', '?')}: {reason}"
        if letter is not None and (sealed := letter.failure(reason)) is not None:
            return Message(sealed, reply_to=message)
        return Message(Error(code=CLIENT_FAILED, reason=reason), reply_to=message)
