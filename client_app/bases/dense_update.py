"""Base class of clients with adapters whose server has dense updates of the same base."""

from abc import ABC

from client_app.bases.global_copy import GlobalCopy, M
from client_app.handler import O


class DenseUpdate(GlobalCopy[O, M], ABC):
    """Client that trains adapters of its own rank, and scores the server's network."""

    @property
    def spec(self) -> str:
        return self.participant.spec

    @property
    def shared_spec(self) -> str:
        return self.participant.global_spec
