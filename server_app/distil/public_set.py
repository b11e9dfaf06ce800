"""What the server halves of DL-SH, DL-MH and I-DL-MH have in common: a public set and a student."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from common import optimise, protocol, quantise, seeds, tree
from common.data.batches import Batches, evaluation_batches
from common.data.dataset import fingerprint
from common.data.public import divide
from common.ensemble.confidence import client_weights, literal_product, weighted_sum
from common.fit import fit
from common.methods.dl_sh import Distilling
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.method import Method
from server_app.talk.census import Client

U = TypeVar("U", bound=protocol.Up)


@final
class State(Records):
    w: StateDict  #: M_tgt


class Distillation(Method[U], ABC):
    """M_tgt, trained on X_dist with targets that the clients' predictions make up."""

    keeps = State

    def prepare(self) -> None:
        super().prepare()
        divided = divide(self.config.data, self.config.partition_seed)
        assert divided.public is not None, "the configuration is checked for a public set"
        self.public, self.labels = divided.public, divided.labels
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)

    @property
    def samples(self) -> int:
        """N, the public samples."""
        return len(self.public)

    @property
    def classes(self) -> int:
        return self.dataset.num_classes

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        own = fingerprint(self.public)
        for client in clients:
            if client.peer.public != own:
                raise ValueError(f"client {client.k} has another public set than the server")

    def check_confidence(self, w: Tensor | None) -> None:
        """Raise ``ValueError`` unless w_i is there as configured, [N], within [0, 1]."""
        options: Distilling = self.config.method
        if (w is None) != (options.confidence == "uniform"):
            there = "missing" if w is None else "there"
            raise ValueError(f'w is {there}, but confidence = "{options.confidence}"')
        if w is not None:
            quantise.check_dtype(w, (self.samples,), self.config.wire.dtype, "w")
            quantise.check_unit(w, "w")

    def ensemble(
        self, predictions: Sequence[Tensor], w: Sequence[Tensor | None], rule: str
    ) -> Tensor:
        """Y_g [N, C] from each client's M_i(x) [N, C] and w_i [N]; without w_i all count alike."""
        o: Distilling = self.config.method
        known = [
            torch.zeros(self.samples) if w_i is None else quantise.decode(w_i).clamp(0, 1)
            for w_i in w
        ]
        W = client_weights(torch.stack(known), o.conf_t, o.conf_space)
        combine = literal_product if rule == "literal_product" else weighted_sum
        return combine(predictions, W)

    def distil(self, t: int, targets: Tensor) -> float:
        """E_g epochs of CE between targets [N, C] or labels [N] and M_tgt on X_dist; mean loss."""
        o: Distilling = self.config.method
        train, data, seed = self.config.train, self.dataset, self.config.run.seed
        student = self.build(self.global_spec, self.w).train()
        batches = Batches(
            self.public,
            targets,
            batch_size=train.batch_size,
            mean=data.mean,
            std=data.std,
            augment=self.config.data.augment,
            standardize=self.config.data.standardize,
            generator=seeds.stream(seed, "batches", "distil", t),
            device=self.device,
        )
        optimizer = optimise.make(
            student.parameters(),
            train.optimizer,
            train.lr,
            momentum=train.momentum,
            weight_decay=train.weight_decay,
        )
        metrics = fit(
            optimizer,
            (batch for _ in range(o.server_epochs) for batch in batches),
            lambda x, y: F.cross_entropy(student(x), y),
            clip=train.clip,
            precision=self.config.run.precision,
        )
        self.w = tree.snapshot(student)
        return metrics["loss"]

    @torch.no_grad()
    def predictions(self) -> Tensor:
        """softmax M_tgt(X_dist) [N, C], on the CPU."""
        net = self.model().eval()
        batches = evaluation_batches(
            self.public,
            torch.zeros(self.samples, dtype=torch.int64),
            batch_size=self.config.score.batch_size,
            mean=self.dataset.mean,
            std=self.dataset.std,
            standardize=self.config.data.standardize,
            device=self.device,
        )
        return torch.cat([torch.softmax(net(x).float(), dim=1).cpu() for x, _ in batches])

    def model(self) -> Classifier:
        self.net.load_state_dict(self.w)
        return self.net

    def state(self) -> State:
        return State(w=self.w)

    def restore(self, state: State) -> None:
        self.w = state.w
