"""FedMRL, client half: train the own network, the projector and a copy of the small network."""

from typing import final

from torch import Tensor, nn

from client_app.bases.composite import CompositeClient
from common.exchange.protocol import ScoreRequest
from common.exchange.records import StateDict
from common.methods.fedmrl import Options
from common.models.classifier import Classifier
from common.models.composite import Matryoshka, Small
from common.training.fit import Loss


@final
class FedMRL(CompositeClient[Options, Matryoshka]):
    """Client with the loss CE(h_k(r), y) + λ CE(h_w(r[:d₁]), y), r = A_k [f_w(x); f_k(x)]."""

    def compose(self, own: Classifier, shared: Classifier) -> Matryoshka:
        K, d = own.head.in_features, shared.head.in_features
        return Matryoshka(own, shared, nn.Linear(d + K, K))

    def loss(self, net: Matryoshka) -> Loss:
        p, weight = self.participant, self.options.weight

        def loss(x: Tensor, y: Tensor) -> Tensor:
            r = net.features(x)
            return p.loss(net.head(r), y) + weight * p.loss(net.small(r), y)

        return loss

    def to_score(self, request: ScoreRequest, w: StateDict) -> Classifier:
        """Return the predictor with the weights ``w``; without any, the small head's."""
        assert request.w is not None, "the small network"
        net = self.composite(request.t + 1, request.w)
        return net if w else Small(net)
