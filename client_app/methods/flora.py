"""FLoRA, client half: train new adapters above the updates of all rounds."""

from typing import final

from client_app.bases.dense_update import DenseUpdate
from client_app.participant import upload
from common.exchange.protocol import ModelReply
from common.exchange.records import Records, StateDict
from common.methods.flora import Options, Request, added
from common.models.adapters import begin_anew


@final
class ClientState(Records, kind="flora.Memory"):
    """State of client k after a round: the update ΔW that it started from."""

    w: StateDict


@final
class FLoRA(DenseUpdate[Options, Request]):
    """Client with the loss CE(f(W + ΔW + s B A; x), y)."""

    def train(self, request: Request) -> ModelReply:
        p, w = self.participant, request.w
        if request.stack:
            before = p.load_state_of(request.t - 1, ClientState).w
            w = {**added(before, request.stack), **w}
        net = p.model(self.spec).train()
        begin_anew(net, w, self.task.seed, *([p.k, request.t] if request.t > 1 else []))
        if self.options.stacks:
            p.save_state(request.t, ClientState(w=w))
        return ModelReply(metrics=self.learn(request, net), w=upload(net))
