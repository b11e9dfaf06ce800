"""FedKTL, client half: an angular loss by fixed directions, and generated images for each class."""

from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from client_app.bases.class_table import TableSender
from common import seeds
from common.losses.transfer import arcface
from common.methods.fedktl import Options, Request, TableReply
from common.models.classifier import Classifier
from common.models.simplex import Simplex, simplex
from common.training.fit import Loss
from common.training.task import Extend


@final
class FedKTL(TableSender[Options, Request]):
    """Client with the loss ArcFace(⟨z_k(x), m_c⟩, y) + μ mean (W_k f_k(x_c) − v_c)²."""

    def train(self, request: Request) -> TableReply:
        p, t, net = self.participant, request.t, self.local(request.t).train()
        images, vectors = request.images, request.vectors
        if self.options.mu and images is not None and vectors is not None:
            with seeds.scope(self.task.seed, "init", "projection"):
                projection = nn.Linear(net.head.in_features, vectors.shape[1])
            networks = (net, projection.to(self.task.device))
            groups = [{"params": list(network.parameters())} for network in networks]
            extended = self._extended(t, images, vectors)
            metrics = p.train(t, groups, self.loss(*networks), extended)
        else:
            metrics = p.train(t, net.parameters(), self.loss(net))
        self.keep(t, net)
        reply = self.table_reply(net, metrics)
        return reply.model_copy(update={"table": F.normalize(reply.table)})

    def loss(self, net: Classifier, projection: nn.Module | None = None) -> Loss:
        """Return the loss of a batch (x, y); with ``projection`` of (x, y, images, vectors)."""
        o, predictor = self.options, self.predictor(net)

        def loss(x: Tensor, y: Tensor, *generated: Tensor) -> Tensor:
            value = arcface(predictor(x), y, o.scale, o.margin)
            if projection is None:
                return value
            images, vectors = generated
            return value + o.mu * F.mse_loss(projection(net.features(images)), vectors)

        return loss

    def outputs(self, features: Tensor, logits: Tensor) -> Tensor:
        return F.normalize(logits)

    def predictor(self, net: Classifier) -> Simplex:
        draw = seeds.stream(self.task.seed, "init", "simplex")
        return Simplex(net, simplex(self.task.num_classes, draw))

    def own_model(self, t: int) -> Classifier:
        return self.predictor(self.local(t + 1))

    def _extended(self, t: int, images: Tensor, vectors: Tensor) -> Extend:
        """Return a function that adds generated images and their vectors to each batch."""
        name = ("generated", self.participant.k, t)
        pairs = self.task.batches(images, vectors, *name, augment="none")

        def extended(batches: Iterable[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
            more = chain.from_iterable(repeat(pairs))
            return ((*batch, *next(more)) for batch in batches)

        return extended
