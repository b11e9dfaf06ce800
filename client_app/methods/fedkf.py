"""FedKF, client half: the own data and a teacher's answers to generated images, fused."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.copy import Copy
from client_app.participant import upload
from common import optimise
from common.datafree import DataFree, new_generator, resumed_generator
from common.methods.fedkf import Down, Options, Up
from common.models.classifier import Classifier
from common.models.generator import Generator
from common.records import Records, StateDict


@final
class Memory(Records):
    """What client k keeps for good."""

    generator: StateDict  #: θ_k
    adam: dict[int, StateDict]  #: its moments


@final
class FedKF(Copy[Options, Down]):
    """From round 2: CE(h(w_k; x), y) + γ KL(h(ŵ; x̂) ‖ h(w_k; x̂)), x̂ = g(θ_k; z)."""

    receives, answers = Down, Up

    def learn(self, down: Down, net: Classifier) -> dict[str, float]:
        """Equations 2-8."""
        if down.t == 1:
            return super().learn(down, net)
        p, gamma, t = self.participant, self.options.gamma, down.t
        teacher = p.model(self.spec, down.w if down.w_hat is None else down.w_hat)
        generator, optimizer = self._generator(down)
        datafree = DataFree(
            self.task,
            generator,
            teacher,
            net,
            optimizer,
            *("latents", p.k, t),
            gamma=gamma,
            size=self.config.train.batch_size,
        )

        def loss(x: Tensor, y: Tensor, images: Tensor, logits: Tensor) -> Tensor:
            return F.cross_entropy(net(x), y) + gamma * datafree.distance(images, logits)

        metrics = p.train(t, net.parameters(), loss, datafree.batches)
        if optimizer is None:
            return metrics
        adam = optimise.moments(optimizer)
        p.remember(t, Memory(generator=upload(generator), adam=adam))
        return {**metrics, "generator_loss": datafree.mean_loss}

    def own_generator(self, t: int) -> Generator | None:
        """θ_k after round t, on the CPU; None if this client has trained none."""
        memory = self.participant.recall(t + 1, Memory)
        if memory is None:
            return None
        generator = new_generator(self.task)
        generator.load_state_dict(memory.generator)
        return generator

    def _generator(self, down: Down) -> tuple[Generator, torch.optim.Optimizer | None]:
        """θ_k and its optimiser, or the server's θ, which none moves."""
        memory = self.participant.recall(down.t, Memory)
        if down.theta is not None:
            generator = new_generator(self.task)
            generator.load_state_dict(down.theta)
            return self.task.place(generator), None
        kept = (memory.generator, memory.adam) if memory else (None, {})
        return resumed_generator(self.task, down.t, *kept)
