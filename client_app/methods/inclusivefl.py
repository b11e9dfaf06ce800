"""InclusiveFL, client half: FedAvg's, with a learning rate for the client's size."""

from typing import final

from client_app.copy import Copy
from common.methods.inclusivefl import Down, Options, Up
from common.models.classifier import Classifier


@final
class InclusiveFL(Copy[Options, Down]):
    """Copies, trained by cross-entropy."""

    receives, answers = Down, Up

    def learn(self, down: Down, net: Classifier) -> dict[str, float]:
        lr = self.task.lr(down.t) * self.options.factor(self.spec)
        group = {"params": list(net.parameters()), "lr": lr}
        return self.participant.train(down.t, [group], self.loss(down, net))
