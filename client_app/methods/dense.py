"""DENSE, client half: train the own model and send it."""

from typing import final

from client_app.bases.own_model import OwnModel
from common.methods.dense import OneShot, Reply, Request


@final
class Dense(OwnModel[OneShot, Request]):
    """CE(f(w_k; x), y); w_k goes to the server."""

    request_type = Request

    def train(self, request: Request) -> Reply:
        net = self.local(request.t).train()
        return Reply(metrics=self.learn(request.t, net), w=self.keep(request.t, net))
