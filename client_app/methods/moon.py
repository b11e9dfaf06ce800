"""MOON, client half: features near the global model's, and far from the client's past ones."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.copy import Copy
from client_app.participant import upload
from common.fit import Loss
from common.methods.moon import Down, Options, Up
from common.models.classifier import Classifier
from common.records import Records, StateDict


@final
class Memory(Records):
    """What client k keeps of its last round."""

    w: StateDict  #: w_k


@final
class MOON(Copy[Options, Down]):
    """CE(z, y) + μ CE([cos(q, q_g), cos(q, q_p)] / τ, 0)."""

    receives, answers = Down, Up

    def learn(self, down: Down, net: Classifier) -> dict[str, float]:
        metrics = super().learn(down, net)
        self.participant.remember(down.t, Memory(w=upload(net)))
        return metrics

    def loss(self, down: Down, net: Classifier) -> Loss:
        o, p = self.options, self.participant
        memory = p.recall(down.t, Memory)
        received = p.model(self.spec, down.w).eval()
        past = p.model(self.spec, memory.w if memory else down.w).eval()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            q = net.features(x)
            with torch.no_grad():
                q_g, q_p = received.features(x), past.features(x)
            return F.cross_entropy(net.head(q), y) + o.mu * contrast(q, q_g, q_p, o.temperature)

        return loss


def contrast(q: Tensor, near: Tensor, far: Tensor, T: float) -> Tensor:
    """CE([cos(q, near), cos(q, far)] / T, 0), mean over the batch, in nats.

    ``q``, ``near``, ``far``: features [n, d] of the same images; T > 0. Li, He, Song 2021 (MOON),
    eq. 3.
    """
    cosines = torch.stack([F.cosine_similarity(q, other, dim=1) for other in (near, far)], dim=1)
    return F.cross_entropy(cosines / T, torch.zeros(len(q), dtype=torch.int64, device=q.device))
