"""FedGH, client half: train with the server's head and send class means of features."""

from typing import final

from client_app.bases.class_table import TableClient
from client_app.bases.own_model import OwnFeatures
from common.exchange.protocol import ModelRequest
from common.methods.fedgh import Options
from common.models.classifier import Classifier


@final
class FedGH(OwnFeatures[Options, ModelRequest], TableClient[Options, ModelRequest]):
    """Client with the loss CE(h(f_k(x)), y), from the received h."""

    def start(self, request: ModelRequest) -> Classifier:
        return self.with_head(request.t, request.w)
