"""Base classes of clients that send the means of their outputs by class."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from client_app.bases.own_model import OwnModel
from client_app.handler import D
from common.exchange.protocol import ScoreRequest
from common.exchange.records import StateDict
from common.models.classifier import Classifier
from common.models.prototypes import Nearest
from common.techniques.class_table import (
    ClassSums,
    LearnerOptions,
    PrototypeOptions,
    RowOptions,
    TableOptions,
    TableReply,
    TableRequest,
)

R = TypeVar("R", bound=RowOptions)
T = TypeVar("T", bound=TableOptions)
G = TypeVar("G", bound=LearnerOptions)
P = TypeVar("P", bound=PrototypeOptions)
Term = Callable[[Tensor, Tensor], Tensor]
"""Function from outputs [n, m] and labels [n] to a scalar, a term of the loss."""


class TableSender(OwnModel[R, D], ABC):
    """Client with a private model that sends a class table of its outputs."""

    def outputs(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the outputs [n, m] whose means are the rows, for n samples."""
        return logits if self.options.outputs == "logits" else features

    def predictor(self, net: Classifier) -> Classifier:
        """Return the classifier that the client scores; ``net``: its private model."""
        return net

    def table_reply(
        self, net: Classifier, metrics: dict[str, float], sums: ClassSums | None = None
    ) -> TableReply:
        """Return the reply with the means of the outputs.

        ``sums``: those of the training; None: of the trained model ``net``, on all training
        samples without augmentation.
        """
        p = self.participant
        sums = self._collected(net) if sums is None else sums
        if self.options.whole_test:
            metrics = {**metrics, **p.whole_test(self.predictor(net))}
        rows, present = sums.table()
        counts = torch.tensor(p.counts) if self.options.by_counts else torch.ones(len(present))
        return TableReply(metrics=metrics, table=rows, counts=(counts * present).long())

    @torch.no_grad()
    def _collected(self, net: Classifier) -> ClassSums:
        net.eval()
        sums = ClassSums(self.task.num_classes)
        for x, y in self.task.in_order(*self.participant.train_set):
            features = net.features(x)
            sums.add(self.outputs(features, net.head(features)), y)
        return sums


class TableClient(TableSender[T, D], ABC):
    """Client with a private model that sends the class table of its features or logits."""

    def train(self, request: D) -> TableReply:
        p, net = self.participant, self.start(request).train()
        running = self.options.collect == "running"
        sums, term = ClassSums(self.task.num_classes), self.term(request)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            features = net.features(x)
            logits = net.head(features)
            outputs = self.outputs(features, logits)
            if running:
                sums.add(outputs, y)
            value = p.loss(logits, y)
            return value if term is None else value + term(outputs, y)

        metrics = p.train(request.t, net.parameters(), loss)
        self.keep(request.t, net)
        return self.table_reply(net, metrics, sums if running else None)

    def start(self, request: D) -> Classifier:
        """Return the model from which the round starts: the private one."""
        return self.local(request.t)

    def term(self, request: D) -> Term | None:
        """Return the term that is added to the cross-entropy; None: there is none."""
        return None


class TableLearner(TableClient[G, TableRequest], ABC):
    """Client with the loss CE(z, y) + λ · ``distance`` of its outputs to the table's rows."""

    def term(self, request: TableRequest) -> Term | None:
        if request.rows is None or request.present is None:
            return None
        weight, device = self.options.lambda_term, self.task.device
        rows, present = request.rows.to(device), request.present.to(device)
        return lambda outputs, y: weight * self.distance(outputs, rows[y], present[y])

    @abstractmethod
    def distance(self, outputs: Tensor, rows: Tensor, present: Tensor) -> Tensor:
        """Return the mean distance of outputs [n, m] to the rows [n, m] of their classes.

        ``present`` [n]: whether the row exists; a sample without a row counts as 0.
        """


class PrototypeLearner(TableLearner[P], ABC):
    """The same with prototypes, by which the client also classifies (``predict``)."""

    def distance(self, outputs: Tensor, rows: Tensor, present: Tensor) -> Tensor:
        return squared(outputs, rows, present)

    def own_model(self, t: int) -> Classifier | None:
        """Return the private model; None if the prototypes count instead of its head."""
        return super().own_model(t) if self.options.predict == "head" else None

    def to_score(self, request: ScoreRequest, w: StateDict) -> Classifier:
        """Return the classifier by the prototypes ``w``; without any, the private model."""
        net = self.local(request.t + 1)
        return Nearest(net, w["prototypes"], w["present"]) if w else net


def squared(outputs: Tensor, rows: Tensor, present: Tensor) -> Tensor:
    """Return the mean of (outputs − rows)² over a row's numbers and the samples [n, m].

    A sample whose row is not ``present`` [n] counts as 0.
    """
    return ((outputs - rows).square().mean(1) * present).mean()
