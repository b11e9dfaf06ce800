"""A client that trains a copy of what it was sent: a method overrides the loss."""

from abc import ABC
from typing import ClassVar, TypeVar

import torch.nn.functional as F
from torch import Tensor

from client_app.handler import Handler, O
from client_app.participant import upload
from common.exchange.protocol import ModelReply, ModelRequest
from common.models.classifier import Classifier
from common.training.fit import Loss

M = TypeVar("M", bound=ModelRequest)


class GlobalCopy(Handler[O, M], ABC):
    """w_k, trained from w on the client's own samples, goes back; nothing is kept."""

    reply_type: ClassVar[type[ModelReply]]

    @property
    def spec(self) -> str:
        """The client's own where the run averages across architectures, else the server's."""
        p = self.participant
        return p.global_spec if self.config.average.across == "none" else p.spec

    @property
    def shared_spec(self) -> str:
        return self.spec

    def trains(self, request: M) -> str:
        """The architecture that is trained in this round."""
        return self.spec

    def train(self, request: M) -> ModelReply:
        net = self.participant.model(self.trains(request), request.w).train()
        metrics = self.learn(request, net)
        answer = {"metrics": metrics, "w": upload(net), **self.more(request)}
        return self.reply_type.model_validate(answer)

    def learn(self, request: M, net: Classifier) -> dict[str, float]:
        """Local training of ``net`` by the method's loss; scalars for the journal."""
        return self.participant.train(request.t, net.parameters(), self.loss(request, net))

    def loss(self, request: M, net: Classifier) -> Loss:
        """What ``net`` descends on a batch (x, y)."""
        return cross_entropy(net)

    def more(self, request: M) -> dict[str, object]:
        """Fields of the answer beside the weights."""
        return {}


def cross_entropy(net: Classifier) -> Loss:
    """CE(f(w; x), y)."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net(x), y)

    return loss
