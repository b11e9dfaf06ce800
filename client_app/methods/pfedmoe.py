"""pFedMoE, client half: train the own network, the gate and a copy of the small extractor."""

from typing import final

from client_app.bases.composite import CompositeClient
from common.exchange.records import StateDict
from common.methods.pfedmoe import Options
from common.models.classifier import Classifier
from common.models.composite import Gate, Gated
from common.training.fit import Loss


@final
class PFedMoE(CompositeClient[Options, Gated]):
    """Client with the loss CE(h_k(α_0 f_w(x) + α_1 f_k(x)), y), α = softmax(g_k(x))."""

    def small(self, w: StateDict) -> Classifier:
        p = self.participant
        net = p.initial(p.global_spec)
        net.load_state_dict({**net.state_dict(), **w})  # its head stays unused
        return net

    def compose(self, own: Classifier, shared: Classifier) -> Gated:
        o, normalise = self.options, self.options.gate_norm == "layer"
        return Gated(own, shared, Gate(self.task.shape, o.gate_hidden, normalise=normalise))

    def loss(self, net: Gated) -> Loss:
        return self.participant.supervised(net)
