"""Local training, client half: train the client's own model, send no weights."""

from typing import final

from client_app.bases.own_model import OwnModel
from common.methods.local import Options, Reply, Request


@final
class Local(OwnModel[Options, Request]):
    """Client with the loss CE(f(θ_k; x), y)."""

    def train(self, request: Request) -> Reply:
        p, net = self.participant, self.local(request.t).train()
        metrics = self.learn(request.t, net)
        self.keep(request.t, net)
        if self.options.whole_test:
            metrics = {**metrics, **p.whole_test(net)}
        return Reply(metrics=metrics)
