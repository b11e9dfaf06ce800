"""The client halves, one file per method, found by its name: that of its contract."""

from client_app.handler import Handler
from client_app.participant import Participant
from common import methods
from common.exchange.protocol import Request
from common.settings.config import MethodOptions

AnyHandler = Handler[MethodOptions, Request]


def half(name: str) -> type[AnyHandler]:
    """The client half of a method that exists."""
    return methods.half(__name__, name, Handler)


def make(participant: Participant) -> AnyHandler:
    """The chosen method's client half for one participant."""
    return half(participant.config.run.method)(participant)
