"""FLoRA, client half: train new adapters above the updates of all rounds."""

from typing import final

from client_app.bases.dense_update import DenseUpdate
from client_app.participant import upload
from common.exchange.protocol import ModelReply
from common.methods.flora import Options, Request
from common.models.adapters import begin_anew


@final
class FLoRA(DenseUpdate[Options, Request]):
    """Client with the loss CE(f(W + ΔW + s B A; x), y)."""

    def train(self, request: Request) -> ModelReply:
        p = self.participant
        net = p.model(self.spec).train()
        begin_anew(net, request.w, self.task.seed, *([p.k, request.t] if request.t > 1 else []))
        return ModelReply(metrics=self.learn(request, net), w=upload(net))
