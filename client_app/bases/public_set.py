"""Clients that see the public set; those of DL-SH, DL-MH, I-DL-MH, whose model speaks about it."""

from abc import ABC
from typing import ClassVar, TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app import reuse
from client_app.handler import D, Handler, O
from client_app.participant import Participant, upload
from common.data.dataset import fingerprint
from common.exchange import quantise
from common.exchange.protocol import Reply
from common.exchange.records import Records, StateDict
from common.methods.dl_sh import Distilling
from common.models.classifier import Classifier
from common.models.masked import Masked, beheaded
from common.techniques.ensemble import odin_score, rescaled, to_local
from common.techniques.public_set import subset

P = TypeVar("P", bound=Distilling)


@final
class LocalModel(Records, kind="public_set.Local"):
    """What client i keeps: M_i after the training of round t."""

    t: int
    w: StateDict


class SharedPublicSet(Handler[O, D], ABC):
    """Holds the public set, which the census compares."""

    def admit(self) -> None:
        _ = self.participant.public

    def public(self) -> str:
        return fingerprint(self.participant.public)

    def images(self, t: int) -> Tensor:
        """A_t [n, C, H, W], the public images of round t."""
        public = self.participant.public
        return public[subset(self.task, t, len(public))]


class Teacher(SharedPublicSet[P, D], ABC):
    """Trains M_i, then speaks about the public set."""

    reply_type: ClassVar[type[Reply]]

    def train(self, request: D) -> Reply:
        net, metrics = self.learn(request.t)
        answer = {"metrics": metrics, **self.said(net), "w": self.confidence(request.t, net)}
        return self.reply_type.model_validate(answer)

    def said(self, net: Classifier) -> dict[str, object]:
        """Fields of the answer about the public set: softmax M_i(X_dist) [N, |d|] in the wire's
        dtype, and the schema.
        """
        theta = torch.softmax(self.logits(net), dim=1)
        return {"theta": quantise.encode(theta, self.config.wire.dtype), "d": self.d}

    @property
    def d(self) -> list[int]:
        """The classes of the client's head, in the order of its outputs."""
        return [c for c, count in enumerate(self.participant.counts) if count]

    def start(self, t: int) -> StateDict | None:
        """Weights that round t's training starts from; None: the first draw."""
        memory = self.participant.load_state(t, LocalModel)
        return memory.w if memory else None

    def network(self, weights: StateDict | None) -> Classifier:
        """M_i; a head of at least two nodes, of which the first |d| count."""
        return self.participant.model(self.participant.spec, weights, classes=max(len(self.d), 2))

    def learn(self, t: int) -> tuple[Classifier, dict[str, float]]:
        """M_i after E epochs on the client's own samples, and what the journal hears of it."""
        p, d = self.participant, self.d
        net = self.network(self.start(t)).train()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net(x)[:, : len(d)], to_local(y, d))

        metrics = reuse.once(
            p, t, net, "of its classes", lambda: p.train(t, net.parameters(), loss)
        )
        p.save_state(t, LocalModel(t=t, w=upload(net)))
        return net, metrics | {"test_accuracy": p.test_accuracy(self.masked(net))}

    @property
    def rides(self) -> bool:
        """Whether it is a free rider: it says nothing about the public set."""
        return self.participant.k < self.options.free_riders

    def logits(self, net: Classifier) -> Tensor:
        """M_i(X_dist) [N, |d|] before the softmax; a free rider's are all 0."""
        if self.rides:
            return torch.zeros(len(self.participant.public), len(self.d))
        return self.task.logits(net, self.participant.public)[:, : len(self.d)]

    def confidence(self, t: int, net: Classifier) -> Tensor | None:
        """w_i [N] in the wire's dtype, or None; a free rider's is 1 throughout."""
        if self.rides and self.config.confidence.kind != "uniform":
            w: Tensor | None = torch.ones(len(self.participant.public))
        else:
            w = confidence(self.participant, t, net, self.masked(net))
        return None if w is None else quantise.encode(w.clamp(0, 1), self.config.wire.dtype)

    def own_model(self, t: int) -> Classifier | None:
        return self.masked(self.network(self.start(t + 1)))

    def masked(self, net: Classifier) -> Classifier:
        """M_i speaking of all the task's classes."""
        return self.task.place(Masked(net, self.d, self.task.num_classes))


def confidence(p: Participant, t: int, net: Classifier, answers: Classifier) -> Tensor | None:
    """w_i in [0, 1], [N], of the client's trained ``net``; None if all count the same.

    ``reply_type``: the same network, speaking of the task's classes.
    """
    kind = p.config.confidence.kind
    if kind == "uniform":
        return None
    if kind == "odin":
        return rescaled(_odin(p, answers))
    return _private(p, t, net)


def _private(p: Participant, t: int, net: Classifier) -> Tensor:
    """P(label 0): train C_i to tell X_i (0) from X_dist (1), then ask it (Algorithm 1, 9-20)."""
    o = p.config.confidence
    own, public = p.train_set[0], p.public.to(p.device)
    judge = p.model(p.spec, classes=2, part="confidence")
    if o.init == "local":
        judge.load_state_dict(beheaded(upload(net)), strict=False)
    if o.balance == "sampling":
        size = max(len(own), len(public))
        own, public = _repeated(own, size), _repeated(public, size)
    x = torch.cat([own, public])
    y = torch.cat([torch.zeros(len(own)), torch.ones(len(public))]).long().to(p.device)
    weight = None
    if o.balance == "weights":
        counts = torch.tensor([len(own), len(public)], dtype=torch.float32, device=p.device)
        weight = len(x) / (2 * counts)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(judge(images), labels, weight)

    p.train_on(t, judge, x, y, loss, times=o.epochs, name="confidence")
    return torch.softmax(p.task.logits(judge, p.public), dim=1)[:, 0]


def _odin(p: Participant, net: Classifier) -> Tensor:
    o = p.config.confidence
    net.eval()
    scores = [
        odin_score(net, x, T=o.odin_temperature, epsilon=o.odin_epsilon, std=p.task.std)
        for x, _ in p.task.in_order(p.public)
    ]
    return torch.cat(scores).cpu()


def _repeated(x: Tensor, size: int) -> Tensor:
    """The rows of x round and round until there are ``size``."""
    return x[torch.arange(size, device=x.device) % len(x)]
