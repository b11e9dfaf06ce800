"""LG-FedAvg, client half: train the private model from the server's head, send the head."""

from typing import final

from client_app.bases.own_model import OwnModel
from client_app.participant import upload
from common.exchange.protocol import ScoreRequest
from common.exchange.records import StateDict
from common.methods import lg_fedavg
from common.methods.lg_fedavg import Options, Reply, Request
from common.models.classifier import Classifier


@final
class LGFedAvg(OwnModel[Options, Request]):
    """Client with the loss CE(h(f_k(x)), y), from the received h."""

    request_type = Request

    def train(self, request: Request) -> Reply:
        net = self._with_head(request.t, request.w).train()
        metrics = self.learn(request.t, net)
        self.keep(request.t, net)
        return Reply(metrics=metrics, w=upload(lg_fedavg.shared(net)))

    def own_model(self, t: int) -> None:
        """Return None: the client scores its features with the server's newest head."""

    def to_score(self, request: ScoreRequest, w: StateDict) -> Classifier:
        return self._with_head(request.t + 1, w)

    def _with_head(self, t: int, head: StateDict) -> Classifier:
        net = self.local(t)
        lg_fedavg.shared(net).load_state_dict(head)
        return net
