"""FedGH, client half: train with the server's head and send class means of features."""

from typing import final

from client_app.bases.class_table import TableClient
from common.exchange.protocol import ModelRequest, ScoreRequest
from common.exchange.records import StateDict
from common.methods.fedgh import Options
from common.models.classifier import Classifier


@final
class FedGH(TableClient[Options, ModelRequest]):
    """Client with the loss CE(h(f_k(x)), y), from the received h."""

    request_type = ModelRequest

    def start(self, request: ModelRequest) -> Classifier:
        return self._with_head(request.t, request.w)

    def own_model(self, t: int) -> None:
        """Return None: the client scores its features with the server's newest head."""

    def to_score(self, request: ScoreRequest, w: StateDict) -> Classifier:
        return self._with_head(request.t + 1, w)

    def _with_head(self, t: int, head: StateDict) -> Classifier:
        net = self.local(t)
        net.head.load_state_dict(head)
        return net
