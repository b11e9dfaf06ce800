"""FedNova, server half: average the updates, each normalised by the client's effective steps."""

import math
from collections.abc import Iterable, Set
from typing import final

import torch

from common.exchange.records import StateDict
from common.methods.fednova import Options, Reply
from server_app.global_model import Averaged
from server_app.method import Replies


@final
class FedNova(Averaged[Options, Reply]):
    """Server with w ← w − (Σ_k p_k a_k) Σ_k p_k (w − w_k) / a_k."""

    def states(
        self, replies: Replies[Reply], previous: StateDict, parameters: Set[str]
    ) -> Iterable[StateDict]:
        """Return w + (Σ_j p_j a_j / a_k) (w_k − w) for each k, j over clients with the layer."""
        limits = self.limits
        a = [self.task.effective_steps(c.n, limits.get(c.k, 0)) for c in replies.clients]
        if min(a) == max(a):
            return super().states(replies, previous, parameters)
        p = self.config.average.shares(replies.sizes)
        layerwise = self.config.average.across == "layerwise"
        specs = [client.architecture for client in replies.clients]
        has = [self.task.expected(spec) if layerwise else parameters for spec in specs]
        mean = {}
        for name in parameters:
            owners = [k for k, names in enumerate(has) if name in names]
            total = sum(p[k] for k in owners)
            mean[name] = math.fsum(p[k] * a[k] for k in owners) / total if owners else 0.0

        def normalised(w_k: StateDict, a_k: float) -> StateDict:
            scaled = dict(w_k)
            for name in parameters & w_k.keys():
                w = previous[name].to(torch.float64)
                scaled[name] = (w + mean[name] / a_k * (w_k[name] - w)).to(w_k[name].dtype)
            return scaled

        return (normalised(reply.w, a_k) for (_, reply), a_k in zip(replies, a, strict=True))
