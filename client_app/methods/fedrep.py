"""FedRep, client half: train the own head, then the shared base, each with the other one frozen."""

from typing import final

from client_app.bases.partly_shared import PartlyShared
from common.exchange.protocol import ModelRequest
from common.methods.fedrep import Options
from common.models.batchnorm import norms
from common.models.classifier import Classifier


@final
class FedRep(PartlyShared[Options]):
    """Client with the loss CE(f(φ_k, h_k; x), y), in h_k first and then in φ_k."""

    def learn(self, request: ModelRequest, net: Classifier) -> dict[str, float]:
        o, metrics = self.options, dict[str, float]()
        if o.head_epochs:
            head = self._phase(request, net, o.head_epochs, head=True)
            metrics |= {f"head_{name}": value for name, value in head.items()}
        if o.body_epochs:
            metrics |= self._phase(request, net, o.body_epochs, head=False)
        return metrics

    def _phase(
        self, request: ModelRequest, net: Classifier, times: int, *, head: bool
    ) -> dict[str, float]:
        """Train the head or the base for ``times`` epochs with the other part frozen."""
        private = self.options.private(net)
        trained = []
        for name, parameter in net.named_parameters():
            parameter.requires_grad_((name in private) == head)
            trained += [parameter] if parameter.requires_grad else []
        if not trained:
            return {}
        if head and self.options.freeze_statistics:
            for norm in norms(net):
                norm.train(norm.weight is None or norm.weight.requires_grad)
        try:
            phase, loss = "head" if head else "", self.loss(request, net)
            return self.participant.train(request.t, trained, loss, times=times, phase=phase)
        finally:
            net.requires_grad_(True).train()
