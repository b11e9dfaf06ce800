"""RoLoRA, client half: train one half of the adapter. FFA-LoRA uses it too."""

from typing import final

from client_app.bases.global_copy import GlobalCopy
from client_app.participant import upload
from common.exchange.protocol import ModelReply
from common.exchange.records import Records, StateDict
from common.exchange.tree import cut
from common.methods.rolora import Halves, Request


@final
class ClientState(Records, kind="rolora.Memory"):
    """State of client k after a round: the adapter that it started from."""

    w: StateDict


@final
class RoLoRA(GlobalCopy[Halves, Request]):
    """Client with the loss CE(f(W + s B A; x), y), of which it trains A or B."""

    def start(self, request: Request) -> StateDict:
        """Return the adapter, with the half that the request lacks from the last round, or A_0.

        Raises ``ValueError`` if there is no state of the last round.
        """
        p, whole = self.participant, self.task.expected(self.spec)
        if set(request.w) == set(whole):
            return request.w
        if self.options.turns:
            kept = p.load_state_of(request.t - 1, ClientState).w
        else:
            kept = upload(p.initial(self.spec))
        return cut({**kept, **request.w}, whole)

    def trained_from(self, request: Request) -> StateDict:
        return self.start(request)

    def train(self, request: Request) -> ModelReply:
        p, w = self.participant, self.start(request)
        net = p.model(self.spec, w).train()
        trained = self.options.trained(w, request.t)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name in trained)
        parameters = [p for p in net.parameters() if p.requires_grad]
        metrics = p.train(request.t, parameters, self.loss(request, net))
        if self.options.turns:
            p.save_state(request.t, ClientState(w=w))
        return ModelReply(metrics=metrics, w=cut(upload(net), trained))
