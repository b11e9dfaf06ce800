"""FedFTG, server half: average, then fine-tune against a generator.

Contract: common/methods/fedftg.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common import optimise, seeds, tree
from common.fit import fit
from common.losses import hard_samples
from common.methods import fedftg as contract
from common.models.batchnorm import batch_statistics
from common.models.generator import Generator
from common.records import Records, StateDict
from server_app.combine.averaging import average
from server_app.global_model import GlobalModel
from server_app.method import Metrics, mean_metrics
from server_app.talk.census import Client


@final
class Memory(Records):
    """What round t + 1 depends on."""

    w: StateDict
    theta: StateDict  #: θ


@final
class FedFTG(GlobalModel[contract.Up]):
    """w ← Σ p_k w_k, then θ learns what w does not know and w learns it from the w_k."""

    answers, keeps = contract.Up, Memory

    def prepare(self) -> None:
        super().prepare()
        self.options: contract.Config = self.config.method
        o, data = self.options, self.dataset
        with seeds.scope(self.config.run.seed, "init", "generator"):
            self.generator = Generator(
                o.latent + data.num_classes,
                data.shape,
                mean=data.mean,
                std=data.std,
                width=o.generator_width,
            )
        self.generator.to(self.device).train()
        self.theta = tree.snapshot(self.generator)

    def begin(self, clients: Sequence[Client]) -> None:
        for client in clients:
            if client.peer.counts is None:
                raise ValueError(
                    f"client {client.k} tells no class counts; set share-counts = true"
                )
        super().begin(clients)

    def down(self, t: int) -> contract.Down:
        return contract.Down(experiment=self.experiment, t=t, w=self.w)

    def check(self, client: Client, up: contract.Up) -> None:
        tree.check_like(up.w, self.w, "w")

    def step(self, t: int, ups: list[tuple[Client, contract.Up]]) -> Metrics:
        metrics, sizes = mean_metrics(ups), [client.n for client, _ in ups]
        self.w = average([up.w for _, up in ups], sizes, self.w, self.options, self.net)
        if self.options.iterations:
            metrics |= self._fine_tune(t, ups)
        return metrics

    def _fine_tune(self, t: int, ups: list[tuple[Client, contract.Up]]) -> Metrics:
        """Algorithm 1, the server's iterations."""
        o, run = self.options, self.config.run
        counts = torch.tensor([client.peer.counts for client, _ in ups], dtype=torch.float64)
        p, alpha = (x.to(self.device) for x in label_weights(counts))
        teachers = [self.build(self.global_spec, up.w).eval() for _, up in ups]
        for teacher in teachers:
            teacher.requires_grad_(False)
        student = self.build(self.global_spec, self.w)
        self.generator.load_state_dict(self.theta)
        adam = optimise.make(self.generator.parameters(), "adam", o.generator_lr)
        sgd = optimise.make(student.parameters(), "sgd", o.server_lr, momentum=o.server_momentum)
        draw = seeds.stream(run.seed, "fakes", t, device=self.device)

        def latents(count: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            """z [Q, latent], y [Q] and the number of the batch."""
            for i in range(count):
                z = torch.randn(o.generated, o.latent, generator=draw, device=self.device)
                y = torch.multinomial(p, o.generated, replacement=True, generator=draw)
                yield z, y, torch.tensor(i)

        def imagine(z: Tensor, y: Tensor) -> Tensor:
            one_hot = F.one_hot(y, self.dataset.num_classes).to(z.dtype)
            x: Tensor = self.generator(torch.cat([z, one_hot], dim=1))
            return x

        def generator_loss(z: Tensor, y: Tensor, i: Tensor) -> Tensor:
            x, weights = imagine(z, y), alpha[int(i), y]
            teacher = teachers[int(i)](x)
            value = o.lambda_cls * hard_samples.weighted_cross_entropy(teacher, y, weights)
            value = value + o.lambda_dis * hard_samples.diversity(z, x) / len(teachers)
            return value - hard_samples.disagreement(teacher, student(x), weights)

        def student_loss(z: Tensor, y: Tensor, _: Tensor) -> Tensor:
            with torch.no_grad():
                x = imagine(z, y)
                taught = [teacher(x) for teacher in teachers]
            s = student(x)
            losses = [
                hard_samples.weighted_soft_cross_entropy(logits, s, alpha[k, y])
                for k, logits in enumerate(taught)
            ]
            return torch.stack(losses).sum()

        found, learnt = 0.0, 0.0
        with ExitStack() as stack:
            stack.enter_context(seeds.scope(run.seed, "fine-tune", t))
            for net in [student, *(teachers if o.kd_teacher_bn == "batch" else [])]:
                stack.enter_context(batch_statistics(net))
            for _ in range(o.iterations):
                student.requires_grad_(False)
                found += fit(adam, latents(len(teachers)), generator_loss)["loss"]
                student.requires_grad_(True)
                learnt += fit(sgd, latents(o.student_steps), student_loss)["loss"]
        self.w, self.theta = tree.snapshot(student), tree.snapshot(self.generator)
        return {"generator_loss": found / o.iterations, "distill_loss": learnt / o.iterations}

    def state(self) -> Memory:
        return Memory(w=self.w, theta=self.theta)

    def restore(self, state: Memory) -> None:
        self.w, self.theta = state.w, state.theta


def label_weights(counts: Tensor) -> tuple[Tensor, Tensor]:
    """p(y) [C] ∝ Σ_k n_k^y and α_k^y = n_k^y / Σ_j n_j^y [K, C], float32, of n_k^y [K, C].

    A class that nobody holds is never drawn; its α are 0.
    """
    totals = counts.sum(0)
    alpha = counts / totals.clamp_min(1)
    return (totals / totals.sum()).float(), alpha.float()
