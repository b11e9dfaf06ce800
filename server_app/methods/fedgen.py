"""FedGen, server half: FedAvg, and a generator that the clients' heads teach.

Contract: common/methods/fedgen.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common import optimise, seeds, tree
from common.fit import Loss, fit
from common.losses.diversity import diversity
from common.methods.fedgen import Config, Down, Up
from common.models.feature_generator import FeatureGenerator
from common.records import Records, StateDict
from server_app.combine.averaging import average
from server_app.global_model import GlobalModel
from server_app.method import Metrics, mean_metrics
from server_app.talk.census import Client


@final
class State(Records):
    w: StateDict
    generator: StateDict
    adam: dict[int, StateDict]
    counts: dict[int, list[int]]


@final
class FedGen(GlobalModel[Up]):
    """w ← Σ_k p_k w_k;  G learns features that the clients' heads call ŷ."""

    answers, keeps = Up, State

    def prepare(self) -> None:
        super().prepare()
        o: Config = self.config.method
        self.options = o
        with seeds.scope(self.config.run.seed, "init", "generator"):
            self.generator = FeatureGenerator(
                o.noise_size, self.dataset.num_classes, self.net.head.in_features, o.hidden
            ).to(self.device)
        self.optimizer = optimise.make(self.generator.parameters(), "adam", o.generator_lr)
        self.counts: dict[int, list[int]] = {}  #: samples of each class, by client

    def down(self, t: int) -> Down:
        if t == 1:
            return Down(experiment=self.experiment, t=t, w=self.w, generator=None, histogram=None)
        return Down(
            experiment=self.experiment,
            t=t,
            w=self.w,
            generator=tree.snapshot(self.generator),
            histogram=self._histogram().float(),
        )

    def check(self, client: Client, up: Up) -> None:
        tree.check_like(up.w, self.w, "w")
        if len(up.counts) != self.dataset.num_classes or sum(up.counts) != client.n:
            raise ValueError(
                f"counts {up.counts} are not those of {client.n} samples of "
                f"{self.dataset.num_classes} classes"
            )

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        sizes = [client.n for client, _ in ups]
        self.w = average([up.w for _, up in ups], sizes, self.w, self.options, self.net)
        self.counts |= {client.k: up.counts for client, up in ups}
        trained = fit(
            self.optimizer, self._noise(t), self._loss(ups), precision=self.config.run.precision
        )
        return {**mean_metrics(ups), "generator_loss": trained["loss"]}

    def _loss(self, ups: list[tuple[Client, Up]]) -> Loss:
        """What G descends, given the heads of the active clients."""
        o = self.options
        heads = [
            (up.w["head.weight"].to(self.device), up.w["head.bias"].to(self.device))
            for _, up in ups
        ]
        sizes = [float(client.n if o.weights == "samples" else 1) for client, _ in ups]
        p = torch.tensor(sizes, device=self.device) / sum(sizes)
        counts = torch.tensor([up.counts for _, up in ups], device=self.device)
        alpha = counts / counts.sum(0).clamp_min(1)  # [k, C]
        self.generator.train()

        def loss(z: Tensor, y: Tensor) -> Tensor:
            features = self.generator(z, y)
            logits = torch.stack([F.linear(features, w, b) for w, b in heads])  # [k, n, C]
            if o.ensemble == "logits":
                value = F.cross_entropy((p[:, None, None] * logits).sum(0), y)
            else:
                each = torch.stack([F.cross_entropy(row, y, reduction="none") for row in logits])
                value = (alpha[:, y] * each).sum(0).mean()
            return value + o.diversity * diversity(z, features)

        return loss

    def _noise(self, t: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (z, ŷ)."""
        o = self.options
        draw = seeds.stream(self.config.run.seed, "noise", t, device=self.device)
        p = self._histogram().to(self.device)
        for _ in range(o.server_steps):
            z = self.generator.latents(o.server_batch_size, o.noise, draw)
            yield z, torch.multinomial(p, o.server_batch_size, replacement=True, generator=draw)

    def _histogram(self) -> Tensor:
        """p(y) over all clients heard of, float64 [C]."""
        total = torch.tensor(list(self.counts.values()), dtype=torch.float64).sum(0)
        return total / total.sum()

    def state(self) -> State:
        return State(
            w=self.w,
            generator=tree.snapshot(self.generator),
            adam=optimise.moments(self.optimizer),
            counts=self.counts,
        )

    def restore(self, state: State) -> None:
        self.w, self.counts = state.w, state.counts
        self.generator.load_state_dict(state.generator)
        optimise.restore_moments(self.optimizer, state.adam)
