"""FlexLoRA, client half: train an adapter of the own rank."""

from typing import final

from client_app.bases.dense_update import DenseUpdate
from common.methods.flexlora import Options, Request


@final
class FlexLoRA(DenseUpdate[Options, Request]):
    """Client with the loss CE(f(W + s B A; x), y)."""
