"""What the client halves of DL-SH, DL-MH and I-DL-MH share: a private model that teaches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.confidence import confidence
from client_app.handler import Handler
from client_app.participant import upload
from client_app.train_on import logits_on
from common import quantise
from common.data.dataset import fingerprint
from common.ensemble.schema import to_local
from common.models.classifier import Classifier
from common.models.masked import Masked
from common.protocol import Down
from common.records import Records, StateDict
from common.scoring import evaluate

D = TypeVar("D", bound=Down)


@final
class Local(Records):
    """What client i keeps: M_i after the training of round t."""

    t: int
    w: StateDict


class Teacher(Handler[D], ABC):
    """Trains M_i, then speaks about the public set."""

    def admit(self) -> None:
        _ = self.participant.public

    def public(self) -> str:
        return fingerprint(self.participant.public)

    @property
    @abstractmethod
    def d(self) -> list[int]:
        """The classes of the client's head, in the order of its outputs."""

    def start(self, t: int) -> StateDict | None:
        """Weights that round t's training starts from; None: the first draw."""
        memory = self.participant.recall(t, Local)
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

        metrics = p.train(t, net.parameters(), loss)
        p.remember(t, Local(t=t, w=upload(net)))
        return net, metrics | {"test_accuracy": self.test_accuracy(net)}

    def logits(self, net: Classifier) -> Tensor:
        """M_i(X_dist) [N, |d|] before the softmax."""
        return logits_on(self.participant, net, self.participant.public)[:, : len(self.d)]

    def confidence(self, t: int, net: Classifier) -> Tensor | None:
        """w_i [N] in the wire's dtype, or None."""
        p = self.participant
        w = confidence(p, t, net, self.masked(net))
        return None if w is None else quantise.encode(w.clamp(0, 1), p.config.wire.dtype)

    def probabilities(self, net: Classifier) -> Tensor:
        """softmax M_i(X_dist) [N, |d|] in the wire's dtype."""
        theta = torch.softmax(self.logits(net), dim=1)
        return quantise.encode(theta, self.participant.config.wire.dtype)

    def test_accuracy(self, net: Classifier) -> float:
        """On the whole test set of the task, not only on the client's classes."""
        p, data = self.participant, self.participant.dataset
        return evaluate(self.masked(net), data.x_test, data.y_test, data, p.config).accuracy

    def own_model(self, t: int) -> Classifier | None:
        return self.masked(self.network(self.start(t + 1)))

    def masked(self, net: Classifier) -> Classifier:
        """M_i speaking of all the task's classes."""
        p = self.participant
        placed: Classifier = p.place(Masked(net, self.d, p.dataset.num_classes))
        return placed
