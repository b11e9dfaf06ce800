"""FlexLoRA, client half: train an adapter of the own rank."""

from typing import final

from client_app.bases.global_copy import GlobalCopy
from common.methods.flexlora import Options, Request


@final
class FlexLoRA(GlobalCopy[Options, Request]):
    """Client with the loss CE(f(W + s B A; x), y)."""

    @property
    def spec(self) -> str:
        return self.participant.spec
