"""HetLoRA, client half: train an adapter of the own rank, and prune it."""

from typing import final

from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from client_app.participant import upload
from common import models
from common.methods.hetlora import Options, Reply, Request, tail, truncated
from common.models.classifier import Classifier
from common.training.fit import Loss


@final
class HetLoRA(GlobalCopy[Options, Request]):
    """Client with the loss L + λ Σ ‖B[:, c:]‖_F ‖A[c:, :]‖_F."""

    reply_type = Reply

    def trains(self, request: Request) -> str:
        spec, own = request.spec, self.participant.spec
        same = models.frozen(spec) == models.frozen(own)
        if not same or not 1 <= models.rank(spec) <= models.rank(own):
            raise ValueError(f"{spec} is no network of this client; it has {own} or a smaller rank")
        return spec

    def train(self, request: Request) -> Reply:
        net = self.participant.model(self.trains(request), request.w).train()
        rank = models.rank(request.spec)
        c = self.options.kept(rank)
        metrics = self.learn(request, net)
        w = upload(net)
        if c < rank and tail(w, c) < tail(request.w, c):
            w, rank = truncated(w, c), c
        return Reply(metrics={**metrics, "rank": rank}, w=w, rank=rank)

    def loss(self, request: Request, net: Classifier) -> Loss:
        plain, penalty = super().loss(request, net), self.options.prune_weight
        factors, c = dict(net.named_parameters()), self.options.kept(models.rank(request.spec))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return plain(x, y) + penalty * tail(factors, c)

        return loss if penalty and c < models.rank(request.spec) else plain
