"""Base class of clients that train a copy of the global model; methods override the loss."""

from abc import ABC
from typing import ClassVar, TypeVar

from client_app.handler import Handler, O
from client_app.participant import upload
from common.exchange.protocol import ModelReply, ModelRequest
from common.models.classifier import Classifier
from common.settings.config import Config
from common.training.fit import Loss

M = TypeVar("M", bound=ModelRequest)


class GlobalCopy(Handler[O, M], ABC):
    """Client that trains w_k from w on its own samples and sends w_k; it stores no model."""

    reply_type: ClassVar[type[ModelReply]] = ModelReply

    @classmethod
    def trains_own(cls, config: Config) -> bool:
        return config.average.across != "none"

    @property
    def spec(self) -> str:
        """The global architecture; the client's own if the run averages across architectures."""
        p = self.participant
        return p.spec if self.trains_own(self.config) else p.global_spec

    @property
    def shared_spec(self) -> str:
        return self.spec

    def trains(self, request: M) -> str:
        """Return the architecture that this client trains in the round of ``request``."""
        return self.spec

    def train(self, request: M) -> ModelReply:
        net = self.participant.model(self.trains(request), request.w).train()
        metrics = self.learn(request, net)
        fields = {"metrics": metrics, "w": upload(net), **self.more(request)}
        return self.reply_type.model_validate(fields)

    def learn(self, request: M, net: Classifier) -> dict[str, float]:
        """Train ``net`` on the method's loss; return scalars for the journal."""
        return self.participant.train(request.t, net.parameters(), self.loss(request, net))

    def loss(self, request: M, net: Classifier) -> Loss:
        """Return the function of a batch (x, y) that the training of ``net`` minimises."""
        return self.participant.supervised(net)

    def more(self, request: M) -> dict[str, object]:
        """Return the fields of the reply beside weights and metrics."""
        return {}
