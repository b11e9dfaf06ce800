"""InclusiveFL, client half: FedAvg's client with a learning rate for the client's size."""

from typing import final

from client_app.bases.global_copy import GlobalCopy
from common.methods.inclusivefl import Options, Request
from common.models.classifier import Classifier


@final
class InclusiveFL(GlobalCopy[Options, Request]):
    """Client that trains a copy of w on cross-entropy, with a learning rate for its size."""

    def learn(self, request: Request, net: Classifier) -> dict[str, float]:
        lr = self.task.lr(request.t) * self.options.factor(self.spec)
        group = {"params": list(net.parameters()), "lr": lr}
        return self.participant.train(request.t, [group], self.loss(request, net))
