"""HeteroFL and FedRolex, client half: train a part of the widest network on the own classes."""

from collections.abc import Callable
from typing import final

from torch import Tensor, nn

from client_app.bases.global_copy import GlobalCopy
from common.exchange.protocol import ScoreRequest
from common.methods.heterofl import Partial, Request
from common.models.classifier import Classifier
from common.models.layers import normalisations
from common.models.masked import Zeroed
from common.training.fit import Loss
from common.training.task import Result


@final
class HeteroFL(GlobalCopy[Partial, Request]):
    """Client with the loss CE(z, y), where the logits z of absent classes are 0."""

    def admit(self) -> None:
        if self.options.rates == "redrawn" and self.participant.node.get("model"):
            raise ValueError(f'the node sets model = {self.spec}, but rates = "redrawn" draws it')

    def trains(self, request: Request) -> str:
        if request.spec not in (known := {*self.config.brought, self.spec}):
            raise ValueError(
                f"{request.spec} is not configured; allowed: {', '.join(sorted(known))}"
            )
        return request.spec

    def loss(self, request: Request, net: Classifier) -> Loss:
        if self.options.scaler and request.rate < 1:
            for norm in normalisations(net):
                norm.register_forward_pre_hook(divided_by(request.rate))
        masked = self.masked(net)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return self.participant.loss(masked(x), y)

        return loss

    def masked(self, net: Classifier) -> Classifier:
        """Return ``net``, with the logits of classes without local samples set to 0 if masked."""
        if self.options.mask == "none":
            return net
        return Zeroed(net, [c for c, count in enumerate(self.participant.counts) if count])

    def final_model(self, request: ScoreRequest) -> Classifier:
        """Return the masked widest network."""
        assert request.w is not None, "the widest network"
        return self.masked(self.participant.model(request.spec, request.w))

    def own_result(self, request: ScoreRequest, shared: Result | None) -> Result | None:
        return self.participant.result(self.final_model(request))


def divided_by(rate: float) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor] | None]:
    """Return the scaler, a hook that divides a module's inputs by ``rate`` during training."""

    def scaled(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
        return (inputs[0] / rate,) if module.training else None

    return scaled
