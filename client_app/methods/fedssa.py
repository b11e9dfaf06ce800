"""FedSSA, client half: fuse the own head rows with the server's, train, send the trained rows."""

from typing import final

from client_app.bases.own_model import OwnModel
from common.methods.fedssa import Options, Reply, Request, fuse, rows


@final
class FedSSA(OwnModel[Options, Request]):
    """Client with the loss CE(h_k(f_k(x)), y), from the fused rows of its classes."""

    def train(self, request: Request) -> Reply:
        held = [c for c, count in enumerate(self.participant.counts) if count]
        net = self.local(request.t)
        fuse(net.head, request.w, held, self.options.mu_at(request.t))
        metrics = self.learn(request.t, net.train())
        self.keep(request.t, net)
        return Reply(metrics=metrics, w=rows(net.head, held))
