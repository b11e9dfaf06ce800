"""Base class of clients with adapters whose server has dense updates of the same base."""

from abc import ABC

from client_app.bases.global_copy import GlobalCopy, M
from client_app.handler import O
from common.settings.config import Config


class DenseUpdate(GlobalCopy[O, M], ABC):
    """Client that trains adapters of its own rank, and scores the server's network."""

    @classmethod
    def trains_own(cls, config: Config) -> bool:
        return True

    @property
    def shared_spec(self) -> str:
        return self.participant.global_spec
