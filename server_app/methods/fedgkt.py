"""FedGKT, server half: learn from everybody's features, answer with logits.

Contract: common/methods/fedgkt.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common import communication, optimise, seeds, tree
from common.fit import fit
from common.losses.distillation import kl
from common.methods.fedgkt import Config, Down, Up
from common.models.classifier import Split
from common.models.edge import behind, feature_shape, splittable
from common.records import Records, StateDict
from server_app.method import Method, Metrics, mean_metrics
from server_app.talk.census import Client


@final
class State(Records):
    w: StateDict  #: the global architecture; f_s is what lies behind its extractor
    z: dict[int, Tensor]  #: z_s by client, [n_k, C]


@final
class FedGKT(Method[Up]):
    """f_s ← f_s − η ∇ Σ_k T² KL(z_c → f_s(H)) + α CE(f_s(H), y);  z_s = f_s(H)."""

    answers, keeps = Up, State

    def prepare(self) -> None:
        super().prepare()
        self.net: Split = splittable(self.build(self.global_spec))
        self.features = feature_shape(self.net, self.dataset.shape)
        self.w = tree.snapshot(self.net)
        self.z: dict[int, Tensor] = {}

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        for client in clients:
            self.check_size(client)
            theirs = feature_shape(splittable(self.build(client.model)), self.dataset.shape)
            if theirs != self.features:
                raise ValueError(
                    f"client {client.k}: {client.model} has features {theirs}, "
                    f"{self.global_spec} takes {self.features}"
                )

    def down(self, t: int) -> Callable[[Client], Down]:
        return lambda client: Down(experiment=self.experiment, t=t, z=self.z.get(client.k))

    def check(self, client: Client, up: Up) -> None:
        n, classes = client.n, self.dataset.num_classes
        for what, got, expected in (
            ("h", tuple(up.h.shape), (n, *self.features)),
            ("z", tuple(up.z.shape), (n, classes)),
            ("y", tuple(up.y.shape), (n,)),
        ):
            if got != expected:
                raise ValueError(f"{what} is {list(got)}, expected {list(expected)}")
        if not up.h.dtype == up.z.dtype == torch.float32:
            raise ValueError(f"h and z are {up.h.dtype} and {up.z.dtype}, expected float32")
        if int(up.y.min()) < 0 or int(up.y.max()) >= classes:
            raise ValueError(f"y has label {int(up.y.max())}; there are 0 to {classes - 1}")

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        o: Config = self.config.method
        train = self.config.train
        h = torch.cat([up.h for _, up in ups]).to(self.device)
        z_c = torch.cat([up.z for _, up in ups]).to(self.device)
        y = torch.cat([up.y for _, up in ups]).to(self.device)
        self.net.load_state_dict(self.w)
        self.net.train()
        optimizer = optimise.make(
            (p for name, p in self.net.named_parameters() if self.net.part(name) != "extractor"),
            train.optimizer,
            train.lr,
            momentum=train.momentum,
            weight_decay=train.weight_decay,
        )

        def loss(rows: Tensor) -> Tensor:
            z_s, T = behind(self.net, h[rows]), o.temperature
            return T**2 * kl(z_c[rows], z_s, T) + o.alpha * F.cross_entropy(z_s, y[rows])

        metrics = fit(
            optimizer,
            self._rows(t, len(y)),
            loss,
            clip=train.clip,
            precision=self.config.run.precision,
        )
        self.w = tree.snapshot(self.net)
        for client, up in ups:
            self.z[client.k] = self._logits(up.h)
        return mean_metrics(ups) | {"server_loss": metrics["loss"]}

    def _rows(self, t: int, n: int) -> Iterator[tuple[Tensor]]:
        """Batches of row numbers; a last one of a single row is left out, for BatchNorm's sake."""
        generator = seeds.stream(self.config.run.seed, "batches", "server", t)
        for _ in range(self.config.method.server_epochs):
            for rows in torch.randperm(n, generator=generator).split(self.config.train.batch_size):
                if len(rows) > 1:
                    yield (rows.to(self.device),)

    @torch.no_grad()
    def _logits(self, h: Tensor) -> Tensor:
        self.net.eval()
        parts = h.split(self.config.score.batch_size)
        return torch.cat([behind(self.net, part.to(self.device)).float().cpu() for part in parts])

    def numbers(self, ups: list[tuple[Client, Up]]) -> int:
        """Equation 7 for one round, each client with its own samples."""
        C, features = self.dataset.num_classes, math.prod(self.features)
        return sum(communication.fedgkt(features, C, C, client.n, 1) for client, _ in ups)

    def model(self) -> None:
        return None

    def ask(self) -> StateDict:
        return self.w

    def state(self) -> State:
        return State(w=self.w, z=self.z)

    def restore(self, state: State) -> None:
        self.w, self.z = state.w, state.z
