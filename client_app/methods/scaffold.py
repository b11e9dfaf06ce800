"""SCAFFOLD, client half: every step corrected by c − c_k."""

from typing import final

import torch
from torch import Tensor

from client_app.copy import Copy
from client_app.participant import upload
from common.losses.gradients import slope
from common.methods.scaffold import Down, Options, Up
from common.models.classifier import Classifier
from common.records import Records, StateDict


@final
class Memory(Records):
    """What client k keeps of a round."""

    c: StateDict  #: c_k


@final
class Scaffold(Copy[Options, Down]):
    """y ← y − η (∇CE(f(y; x), y) − c_k + c)."""

    receives, answers = Down, Up

    def train(self, down: Down) -> Up:
        p, t = self.participant, down.t
        net = p.model(self.spec, down.w).train()
        own = self._own(down)
        self.correction = {name: (c - own[name]).to(self.task.device) for name, c in down.c.items()}
        metrics, w = self.learn(down, net), upload(net)
        dc = self.options.change(self.task, t, p.n, down, w)
        p.remember(t, Memory(c={name: own[name] + d for name, d in dc.items()}), down.accepted)
        return Up(metrics=metrics, w=w, dc=dc)

    def _own(self, down: Down) -> StateDict:
        """c_k as the server knows it."""
        if down.accepted == 0:
            return {name: torch.zeros_like(c) for name, c in down.c.items()}
        return self.participant.recall_of(down.accepted, Memory).c

    def learn(self, down: Down, net: Classifier) -> dict[str, float]:
        p, weights, plain = self.participant, dict(net.named_parameters()), self.loss(down, net)
        lr = self.task.lr(down.t)

        def shifted(x: Tensor, y: Tensor) -> Tensor:
            corrected = [weights[name] for name in self.correction]
            linear = slope([*self.correction.values()], corrected)
            return plain(x, y) + linear

        def after() -> None:
            for name, a in self.correction.items():
                weights[name].sub_(a, alpha=lr)

        if self.options.correction == "after":
            return p.train(down.t, net.parameters(), plain, after=after)
        return p.train(down.t, net.parameters(), shifted)
