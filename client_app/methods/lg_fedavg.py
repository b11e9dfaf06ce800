"""LG-FedAvg, client half: train the private model from the server's head, send the head."""

from typing import final

from client_app.bases.own_model import OwnFeatures
from client_app.participant import upload
from common.methods.lg_fedavg import Options, Reply, Request


@final
class LGFedAvg(OwnFeatures[Options, Request]):
    """Client with the loss CE(h(f_k(x)), y), from the received h."""

    def train(self, request: Request) -> Reply:
        net = self.with_head(request.t, request.w).train()
        metrics = self.learn(request.t, net)
        self.keep(request.t, net)
        return Reply(metrics=metrics, w=upload(net.head))
