"""Base classes of clients with the public set; ``Teacher`` serves DL-SH, DL-MH and I-DL-MH."""

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
    """State of client i: M_i after the training of round t."""

    t: int
    w: StateDict


class SharedPublicSet(Handler[O, D], ABC):
    """Client that has the public set; the census compares its fingerprint with the server's."""

    def admit(self) -> None:
        self.participant.check_public()

    def public(self) -> str:
        return fingerprint(self.participant.public)

    def images(self, t: int) -> Tensor:
        """Return A_t [n, C, H, W], the public images of round t."""
        public = self.participant.public
        return public[subset(self.task, t, len(public))]


class Teacher(SharedPublicSet[P, D], ABC):
    """Client that trains M_i, then sends predictions for the public set X_dist."""

    reply_type: ClassVar[type[Reply]]

    def train(self, request: D) -> Reply:
        net, metrics = self.learn(request.t)
        confidence = self.confidence(request.t, net)
        fields = {"metrics": metrics, **self.prediction_fields(net), "w": confidence}
        return self.reply_type.model_validate(fields)

    def prediction_fields(self, net: Classifier) -> dict[str, object]:
        """Return the reply's predictions softmax M_i(X_dist) [N, |d|], encoded, and schema d."""
        theta = torch.softmax(self.logits(net), dim=1)
        return {"theta": quantise.encode(theta, self.config.wire.dtype), "d": self.d}

    @property
    def d(self) -> list[int]:
        """Classes of the client's head, in the order of its outputs."""
        return [c for c, count in enumerate(self.participant.counts) if count]

    def start(self, t: int) -> StateDict | None:
        """Return the weights from which round t's training starts; None: the first draw."""
        state = self.participant.load_state(t, LocalModel)
        return state.w if state else None

    def network(self, weights: StateDict | None) -> Classifier:
        """Return M_i with ``weights``; its head has max(|d|, 2) outputs, the first |d| are used."""
        return self.participant.model(self.participant.spec, weights, classes=max(len(self.d), 2))

    def learn(self, t: int) -> tuple[Classifier, dict[str, float]]:
        """Train M_i for E epochs on the client's samples; return it and scalars for the journal."""
        p, d = self.participant, self.d
        net = self.network(self.start(t)).train()
        weight = None if p.class_weights is None else p.class_weights[d]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net(x)[:, : len(d)], to_local(y, d), weight)

        metrics = reuse.once(
            p, t, net, "of its classes", lambda: p.train(t, net.parameters(), loss)
        )
        p.save_state(t, LocalModel(t=t, w=upload(net)))
        return net, metrics | p.whole_test(self.masked(net))

    @property
    def is_free_rider(self) -> bool:
        """Whether this client is a free rider, whose predictions contain no information."""
        return self.participant.k < self.options.free_riders

    def logits(self, net: Classifier) -> Tensor:
        """Return the logits M_i(X_dist) [N, |d|]; those of a free rider are all 0."""
        if self.is_free_rider:
            return torch.zeros(len(self.participant.public), len(self.d))
        return self.task.logits(net, self.participant.public)[:, : len(self.d)]

    def confidence(self, t: int, net: Classifier) -> Tensor | None:
        """Return the confidence w_i [N] in the wire's dtype, or None; a free rider's is all 1."""
        if self.is_free_rider and self.config.confidence.kind != "uniform":
            w: Tensor | None = torch.ones(len(self.participant.public))
        else:
            w = confidence(self.participant, t, net, self.masked(net))
        return None if w is None else quantise.encode(w.clamp(0, 1), self.config.wire.dtype)

    def own_model(self, t: int) -> Classifier | None:
        return self.masked(self.network(self.start(t + 1)))

    def masked(self, net: Classifier) -> Classifier:
        """Return M_i with outputs for all classes of the task."""
        return self.task.place(Masked(net, self.d, self.task.num_classes))


def confidence(p: Participant, t: int, net: Classifier, masked: Classifier) -> Tensor | None:
    """Return w_i [N] in [0, 1], computed with the trained ``net``; None if all weights are equal.

    ``masked``: the same network with outputs for all classes of the task.
    """
    kind = p.config.confidence.kind
    if kind == "uniform":
        return None
    if kind == "odin":
        return rescaled(_odin(p, masked))
    return _private(p, t, net)


def _private(p: Participant, t: int, net: Classifier) -> Tensor:
    """Return P(0) [N] on X_dist of C_i, trained on X_i (0) and X_dist (1) (Algorithm 1, 9-20)."""
    o = p.config.confidence
    private, public = p.train_set[0], p.public.to(p.device)
    classifier = p.model(p.spec, classes=2, part="confidence")
    if o.init == "local":
        classifier.load_state_dict(beheaded(upload(net)), strict=False)
    if o.balance == "sampling":
        size = max(len(private), len(public))
        private, public = _repeated(private, size), _repeated(public, size)
    x = torch.cat([private, public])
    y = torch.cat([torch.zeros(len(private)), torch.ones(len(public))]).long().to(p.device)
    weight = None
    if o.balance == "weights":
        counts = torch.tensor([len(private), len(public)], dtype=torch.float32, device=p.device)
        weight = len(x) / (2 * counts)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(classifier(images), labels, weight)

    p.train_on(t, classifier, x, y, loss, times=o.epochs, name="confidence")
    return torch.softmax(p.task.logits(classifier, p.public), dim=1)[:, 0]


def _odin(p: Participant, net: Classifier) -> Tensor:
    o = p.config.confidence
    net.eval()
    scores = [
        odin_score(net, x, T=o.odin_temperature, epsilon=o.odin_epsilon, std=p.task.std)
        for x, _ in p.task.in_order(p.public)
    ]
    return torch.cat(scores).cpu()


def _repeated(x: Tensor, size: int) -> Tensor:
    """Return ``size`` rows: those of x, repeated in order."""
    return x[torch.arange(size, device=x.device) % len(x)]
