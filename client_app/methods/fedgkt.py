"""FedGKT, client half: an extractor, a small classifier, and the server's opinion of each sample.

Contract: common/methods/fedgkt.py.
"""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.handler import Handler
from client_app.participant import upload
from client_app.train_on import train_on
from common.data.batches import evaluation_batches
from common.losses.distillation import kl
from common.methods.fedgkt import Config, Down, Up
from common.models.classifier import Classifier
from common.models.edge import Edge, behind, splittable
from common.protocol import Ask, Score
from common.records import Records, StateDict


@final
class Memory(Records):
    """What client k keeps: f_e and f_c."""

    w: StateDict


@final
class Whole(Classifier):
    """f_s(f_e(x)): the client's extractor before the server's half."""

    def __init__(self, edge: Edge, server: Classifier) -> None:
        super().__init__()
        self.edge, self.server = edge, splittable(server)

    def features(self, x: Tensor) -> Tensor:
        return self.edge.features(x)

    def forward(self, x: Tensor) -> Tensor:
        return behind(self.server, self.edge.net.extractor(x))


@final
class FedGKT(Handler[Down]):
    receives = Down

    def admit(self) -> None:
        self._edge(0)

    def train(self, down: Down) -> Up:
        p = self.participant
        edge = self._edge(down.t).train()
        if down.z is None:
            metrics = p.train(down.t, edge.trained(), lambda x, y: F.cross_entropy(edge(x), y))
        else:
            metrics = self._transfer(down.t, edge, down.z.to(p.device))
        p.remember(down.t, Memory(w=upload(edge)))
        h, z = self._speak(edge)
        y = p.train_set[1].cpu()
        return Up(experiment=p.experiment, t=down.t, k=p.k, metrics=metrics, h=h, z=z, y=y)

    def _transfer(self, t: int, edge: Edge, z_s: Tensor) -> dict[str, float]:
        """E epochs of equation 3."""
        p = self.participant
        o: Config = p.config.method
        images, labels = p.train_set
        if len(z_s) != len(labels):
            raise ValueError(f"{len(z_s)} server logits for {len(labels)} samples")

        def loss(x: Tensor, rows: Tensor) -> Tensor:
            z_c, T = edge(x), o.temperature
            return F.cross_entropy(z_c, labels[rows]) + o.alpha * T**2 * kl(z_s[rows], z_c, T)

        rows = torch.arange(len(labels), device=p.device)
        epochs = p.config.train.epochs
        return train_on(p, edge, images, rows, loss, epochs=epochs, name="transfer", t=t)

    @torch.no_grad()
    def _speak(self, edge: Edge) -> tuple[Tensor, Tensor]:
        """H and z_c of all training samples, in the order of the training set."""
        p = self.participant
        edge.eval()
        batches = evaluation_batches(
            *p.train_set,
            batch_size=p.config.score.batch_size,
            mean=p.dataset.mean,
            std=p.dataset.std,
            standardize=p.config.data.standardize,
        )
        pairs = [(edge.net.extractor(x).float().cpu(), edge(x).float().cpu()) for x, _ in batches]
        features = torch.cat([h for h, _ in pairs]).contiguous()
        return features, torch.cat([z for _, z in pairs])

    def _edge(self, t: int) -> Edge:
        p, data = self.participant, self.participant.dataset
        net = splittable(p.model(p.spec))
        edge = Edge(net, data.num_classes, data.shape, p.config.run.seed)
        memory = p.recall(t, Memory)
        if memory is not None:
            edge.load_state_dict(memory.w)
        placed: Edge = p.place(edge)
        return placed

    def own_model(self, t: int) -> Classifier | None:
        return self._edge(t + 1)

    def score(self, ask: Ask) -> Score:
        p = self.participant
        edge = self._edge(ask.t + 1)
        whole = None if ask.w is None else p.place(Whole(edge, p.model(p.global_spec, ask.w)))
        return Score(
            experiment=p.experiment,
            t=ask.t,
            k=p.k,
            n=p.n_test,
            accuracy=p.accuracy(edge),
            accuracy_global=None if whole is None else p.accuracy(whole),
        )
