"""FedGen, server half: FedAvg's server, and a generator trained with the clients' heads."""

from collections.abc import Iterator
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common import progress, seeds
from common.exchange import tree
from common.exchange.records import StateDict
from common.losses.generation import diversity
from common.methods.fedgen import Options, Reply, Request
from common.models.generator import FeatureGenerator
from common.techniques.datafree import new_feature_generator
from common.training import optimise
from common.training.fit import Loss, fit
from server_app.global_model import Averaged, Weights
from server_app.method import Client, Metrics, Replies


@final
class State(Weights, kind="fedgen.State"):
    generator: StateDict
    adam: dict[int, StateDict]
    counts: dict[int, list[int]]


@final
class FedGen(Averaged[Options, Reply]):
    """Server with w ← Σ_k p_k w_k; G learns features that the clients' heads classify as ŷ."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.generator = tree.snapshot(self._new_generator())
        self.adam: dict[int, StateDict] = {}
        self.counts: dict[int, list[int]] = {}  #: number of samples of each class, by client

    def _new_generator(self) -> FeatureGenerator:
        o = self.options
        generator = new_feature_generator(self.task, self.net, o.noise_size, o.hidden)
        return generator.to(self.task.device)

    def request(self, t: int) -> Request:
        if not self.counts:
            return Request(w=self.w, generator=None, histogram=None)
        histogram = self._histogram().float()
        return Request(w=self.w, generator=self.generator, histogram=histogram)

    def left(self, k: int) -> None:
        super().left(k)
        self.counts.pop(k, None)

    def check(self, client: Client, reply: Reply) -> None:
        super().check(client, reply)
        classes = self.task.num_classes
        if len(reply.counts) != classes or sum(reply.counts) != client.n:
            raise ValueError(
                f"counts {reply.counts} are not those of {client.n} samples of {classes} classes"
            )

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        self.counts |= {client.k: reply.counts for client, reply in replies}
        generator = self._new_generator()
        generator.load_state_dict(self.generator)
        adam = self.task.generator_optimizer(t, generator.parameters())
        optimise.restore_moments(adam, self.adam)
        loss, noise = self._loss(replies, generator), self._noise(t, generator)
        trained = fit(adam, noise, loss, precision=self.config.run.precision)
        self.generator, self.adam = tree.snapshot(generator), optimise.moments(adam)
        return {"generator_loss": trained["loss"]}

    def _loss(self, replies: Replies[Reply], generator: FeatureGenerator) -> Loss:
        """Return the loss of G, from the heads of the active clients."""
        o, device = self.options, self.task.device
        heads = [
            (reply.w["head.weight"].to(device), reply.w["head.bias"].to(device))
            for _, reply in replies
        ]
        sizes = [float(n) for n in self.config.average.shares(replies.sizes)]
        p = torch.tensor(sizes, device=device) / sum(sizes)
        counts = torch.tensor([reply.counts for _, reply in replies], device=device)
        alpha = counts / counts.sum(0).clamp_min(1)  # [k, C]

        def loss(z: Tensor, y: Tensor) -> Tensor:
            features = generator(z, y)
            logits = torch.stack([F.linear(features, w, b) for w, b in heads])  # [k, n, C]
            if o.ensemble == "logits":
                value = F.cross_entropy((p[:, None, None] * logits).sum(0), y)
            else:
                losses = torch.stack([F.cross_entropy(z_k, y, reduction="none") for z_k in logits])
                value = (alpha[:, y] * losses).sum(0).mean()
            return value + o.diversity * diversity(z, features)

        return loss

    def _noise(self, t: int, generator: FeatureGenerator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches (z, ŷ) for the steps of G."""
        o, device = self.options, self.task.device
        draw = seeds.stream(self.task.seed, "noise", t, device=device)
        p = self._histogram().to(device)
        for _ in progress.steps(range(self.server_steps(o.server_steps)), "generator step"):
            z = generator.latents(o.server_batch_size, o.noise, draw)
            yield z, torch.multinomial(p, o.server_batch_size, replacement=True, generator=draw)

    def _histogram(self) -> Tensor:
        """Return p(y) over all clients that have replied so far, float64 [C]."""
        total = torch.tensor(list(self.counts.values()), dtype=torch.float64).sum(0)
        return total / total.sum()
