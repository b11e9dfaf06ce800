"""DepthFL, client half: mutual distillation of the exits up to the client's depth."""

from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from client_app.participant import upload
from common.exchange import tree
from common.exchange.records import Records, StateDict
from common.losses.distillation import kl
from common.losses.gradients import held_near, slope
from common.methods.depthfl import Options, Request, deepest
from common.models.classifier import Classifier
from common.models.exits import Exits
from common.settings.config import Config
from common.training.fit import Loss


@final
class ClientState(Records, kind="depthfl.Memory"):
    """State of client k after a round."""

    g: StateDict  #: g_k of FedDyn, by parameter


@final
class DepthFL(GlobalCopy[Options, Request]):
    """Client with the loss

    Σ_i [CE(z_i, y) + r_t/(d−1) Σ_{j≠i} KL(σ(z_j) ‖ σ(z_i))] − ⟨g_k, w_k⟩ + α/2 ‖w_k − w‖².
    """

    @classmethod
    def trains_own(cls, config: Config) -> bool:
        return True

    def admit(self) -> None:
        deepest([self.spec])

    def shared(self, w: StateDict, spec: str) -> Classifier:
        return self.participant.model(self.spec, tree.cut(w, self.task.expected(self.spec)))

    def learn(self, request: Request, net: Classifier) -> dict[str, float]:
        metrics = super().learn(request, net)
        if self.options.feddyn:
            w, alpha = upload(net), self.options.alpha
            g = {name: g - alpha * (w[name] - request.w[name]) for name, g in self.g.items()}
            self.participant.save_state(request.t, ClientState(g=g), request.accepted)
        return metrics

    def loss(self, request: Request, net: Classifier) -> Loss:
        assert isinstance(net, Exits)
        o, weight = self.options, self.options.weight(request.t)
        of_labels = self.participant.loss

        def exits(x: Tensor, y: Tensor) -> Tensor:
            return mutual(net.each(x), y, weight, alone=o.exits == "last", of_labels=of_labels)

        if not o.feddyn:
            return exits
        weights, near = dict(net.named_parameters()), held_near(net)
        self.g = self._accepted_g(request, list(weights))
        g_k = {name: g.to(self.task.device) for name, g in self.g.items()}

        def dynamic(x: Tensor, y: Tensor) -> Tensor:
            linear = slope([*g_k.values()], [weights[name] for name in g_k])
            return exits(x, y) - linear + o.alpha * near()

        return dynamic

    def _accepted_g(self, request: Request, names: Sequence[str]) -> StateDict:
        """Return g_k of the last round that the server accepted from this client, or zeros."""
        if request.accepted == 0:
            return {name: torch.zeros_like(request.w[name]) for name in names}
        return self.participant.load_state_of(request.accepted, ClientState).g


def mutual(
    exits: Sequence[Tensor],
    y: Tensor,
    weight: float,
    *,
    alone: bool = False,
    of_labels: Loss = F.cross_entropy,
) -> Tensor:
    """Return Σ_i [CE(z_i, y) + weight/(d − 1) Σ_{j≠i} KL(σ(z_j) ‖ σ(z_i))].

    Every term is a mean over the batch. ``exits``: logits z_i [n, C] of d ≥ 1 exits; z_j is without
    gradient. ``alone``: sum over the last i only. ``of_labels``: the loss CE.
    """
    terms: list[Tensor] = []
    for i, z in enumerate(exits):
        if alone and i < len(exits) - 1:
            continue
        terms.append(of_labels(z, y))
        others = [kl(other.detach(), z) for j, other in enumerate(exits) if j != i]
        if weight and others:
            terms.append(weight * torch.stack(others).mean())
    return torch.stack(terms).sum()
