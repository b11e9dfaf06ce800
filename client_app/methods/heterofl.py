"""HeteroFL and FedRolex, client half: a part of the widest network, trained on its own classes."""

from collections.abc import Callable
from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from client_app.bases.global_copy import GlobalCopy
from common.exchange.protocol import ScoreReply, ScoreRequest
from common.methods.heterofl import Partial, Reply, Request
from common.models.classifier import Classifier
from common.models.layers import normalisations
from common.models.masked import Zeroed
from common.training.fit import Loss


@final
class HeteroFL(GlobalCopy[Partial, Request]):
    """CE(z with the logits of absent classes 0, y)."""

    request_type, reply_type = Request, Reply

    def admit(self) -> None:
        if self.options.rates == "redrawn" and self.participant.node.get("model"):
            raise ValueError(f'{self.spec} is its own, but rates = "redrawn" gives it others')

    def trains(self, request: Request) -> str:
        if request.spec not in (known := {*self.config.brought, self.spec}):
            raise ValueError(
                f"{request.spec} is not configured; there are {', '.join(sorted(known))}"
            )
        return request.spec

    def loss(self, request: Request, net: Classifier) -> Loss:
        if self.options.scaler and request.rate < 1:
            for norm in normalisations(net):
                norm.register_forward_pre_hook(divided_by(request.rate))
        masked = self.masked(net)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(masked(x), y)

        return loss

    def masked(self, net: Classifier) -> Classifier:
        if self.options.mask == "none":
            return net
        return Zeroed(net, [c for c, count in enumerate(self.participant.counts) if count])

    def score(self, ask: ScoreRequest) -> ScoreReply:
        """A client's own figure is of the widest network, on its own classes."""
        p, found = self.participant, super().score(ask)
        assert ask.w is not None, "the widest network"
        own = p.accuracy(self.masked(p.model(ask.spec, ask.w)))
        return found.model_copy(update={"accuracy": own})


def divided_by(rate: float) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor] | None]:
    """The scaler: what a module is given in training is divided by ``rate``."""

    def scaled(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
        return (inputs[0] / rate,) if module.training else None

    return scaled
