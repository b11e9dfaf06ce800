"""MOON, client half: pull features to those of the global model, away from the client's past."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from client_app.participant import upload
from common.exchange.records import Records, StateDict
from common.methods.moon import Options, Request
from common.models.classifier import Classifier
from common.training.fit import Loss


@final
class ClientState(Records, kind="moon.Memory"):
    """State of client k after a round."""

    w: StateDict  #: w_k


@final
class MOON(GlobalCopy[Options, Request]):
    """Client with the loss CE(z, y) + μ CE([cos(q, q_g), cos(q, q_p)] / τ, 0)."""

    def learn(self, request: Request, net: Classifier) -> dict[str, float]:
        metrics = super().learn(request, net)
        self.participant.save_state(request.t, ClientState(w=upload(net)))
        return metrics

    def loss(self, request: Request, net: Classifier) -> Loss:
        o, p = self.options, self.participant
        state = p.load_state(request.t, ClientState)
        received = p.model(self.spec, request.w).eval()
        past = p.model(self.spec, state.w if state else request.w).eval()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            q = net.features(x)
            with torch.no_grad():
                q_g, q_p = received.features(x), past.features(x)
            own, near, far = (p.task.objective.pooled_features(f, y) for f in (q, q_g, q_p))
            return p.loss(net.head(q), y) + o.mu * contrast(own, near, far, o.temperature)

        return loss


def contrast(q: Tensor, near: Tensor, far: Tensor, T: float) -> Tensor:
    """Return CE([cos(q, near), cos(q, far)] / T, 0), mean over the batch, in nats.

    ``q``, ``near``, ``far``: features [n, d] of the same images; T > 0. Li, He, Song 2021 (MOON),
    eq. 3.
    """
    cosines = torch.stack([F.cosine_similarity(q, other, dim=1) for other in (near, far)], dim=1)
    return F.cross_entropy(cosines / T, torch.zeros(len(q), dtype=torch.int64, device=q.device))
