"""Client halves, one file for each method, with the same name as its contract."""

from client_app.handler import Handler
from client_app.participant import Participant
from common import methods
from common.exchange.protocol import Request
from common.settings.config import MethodOptions

AnyHandler = Handler[MethodOptions, Request]


def half(name: str) -> type[AnyHandler]:
    """Return the client half of the method ``name``."""
    return methods.half(__name__, name, Handler)


def make(participant: Participant) -> AnyHandler:
    """Return the client half of the configured method for ``participant``."""
    return half(participant.config.run.method)(participant)
