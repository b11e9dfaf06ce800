"""SCAFFOLD, client half: correct every step by c − c_k."""

from typing import final

import torch
from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from client_app.participant import upload
from common.exchange.records import Records, StateDict
from common.losses.gradients import slope
from common.methods.scaffold import Options, Reply, Request
from common.models.classifier import Classifier


@final
class ClientState(Records, kind="scaffold.Memory"):
    """State of client k after a round."""

    c: StateDict  #: control variate c_k


@final
class Scaffold(GlobalCopy[Options, Request]):
    """Client with the step y ← y − η (∇CE(f(y; x), y) − c_k + c)."""

    reply_type = Reply

    def train(self, request: Request) -> Reply:
        p, t = self.participant, request.t
        net = p.model(self.spec, request.w).train()
        c_k = self._accepted_c(request)
        self.correction = {
            name: (c - c_k[name]).to(self.task.device) for name, c in request.c.items()
        }
        metrics, w = self.learn(request, net), upload(net)
        dc = self.options.change(self.task, t, p.n, request, w)
        c_k = {name: c_k[name] + d for name, d in dc.items()}
        p.save_state(t, ClientState(c=c_k), request.accepted)
        return Reply(metrics=metrics, w=w, dc=dc)

    def _accepted_c(self, request: Request) -> StateDict:
        """Return c_k of the last round that the server accepted from this client, or zeros."""
        if request.accepted == 0:
            return {name: torch.zeros_like(c) for name, c in request.c.items()}
        return self.participant.load_state_of(request.accepted, ClientState).c

    def learn(self, request: Request, net: Classifier) -> dict[str, float]:
        p, weights, plain = self.participant, dict(net.named_parameters()), self.loss(request, net)
        lr = self.task.lr(request.t)

        def shifted(x: Tensor, y: Tensor) -> Tensor:
            corrected = [weights[name] for name in self.correction]
            linear = slope([*self.correction.values()], corrected)
            return plain(x, y) + linear

        def after() -> None:
            for name, correction in self.correction.items():
                weights[name].sub_(correction, alpha=lr)

        if self.options.correction == "after":
            return p.train(request.t, net.parameters(), plain, after=after)
        return p.train(request.t, net.parameters(), shifted)
