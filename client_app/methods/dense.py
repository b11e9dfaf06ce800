"""DENSE, client half: train the client's own model and send it."""

from typing import final

from client_app.bases.own_model import OwnModel
from common.methods.dense import OneShot, Reply, Request


@final
class Dense(OwnModel[OneShot, Request]):
    """Client that minimises CE(f(w_k; x), y) and sends w_k."""

    def train(self, request: Request) -> Reply:
        net = self.local(request.t).train()
        return Reply(metrics=self.learn(request.t, net), w=self.keep(request.t, net))
