"""FedKF, client half: the own data and a teacher's answers to generated images, fused.

Contract: common/methods/fedkf.py.
"""

from __future__ import annotations

from typing import final

import torch.nn.functional as F
from torch import Tensor

from client_app.handler import Handler
from client_app.participant import upload
from common import optimise, seeds
from common.datafree import DataFree, is_adversarial, new_generator
from common.methods.fedkf import Config, Down, Up
from common.models.classifier import Classifier
from common.records import Records, StateDict


@final
class Memory(Records):
    """What client k keeps for good."""

    generator: StateDict  #: θ_k
    adam: dict[int, StateDict]  #: its moments


@final
class FedKF(Handler[Down]):
    receives = Down

    @property
    def spec(self) -> str:
        return self.participant.global_spec

    def train(self, down: Down) -> Up:
        p = self.participant
        student = p.model(p.global_spec, down.w).train()
        if down.t == 1:
            metrics = p.train(
                down.t, student.parameters(), lambda x, y: F.cross_entropy(student(x), y)
            )
        else:
            teacher = p.model(p.global_spec, down.w if down.w_hat is None else down.w_hat)
            metrics = self._fuse(down.t, student, teacher)
        return Up(experiment=p.experiment, t=down.t, k=p.k, metrics=metrics, w=upload(student))

    def _fuse(self, t: int, student: Classifier, teacher: Classifier) -> dict[str, float]:
        """Equations 2-8."""
        p = self.participant
        c: Config = p.config.method
        generator, memory = new_generator(c, p.dataset, p.config.run.seed), p.recall(t, Memory)
        if memory is not None:
            generator.load_state_dict(memory.generator)
        datafree = DataFree(
            p.place(generator),
            teacher,
            student,
            c,
            gamma=c.gamma,
            size=p.config.train.batch_size,
            adversarial=is_adversarial(c, p.config.data.name),
            draw=seeds.stream(p.config.run.seed, "latents", p.k, t, device=p.device),
        )
        if memory is not None:
            optimise.restore_moments(datafree.optimizer, memory.adam)

        def loss(x: Tensor, y: Tensor, images: Tensor, logits: Tensor) -> Tensor:
            return F.cross_entropy(student(x), y) + c.gamma * datafree.distance(images, logits)

        metrics = p.train(t, student.parameters(), loss, datafree.batches)
        adam = optimise.moments(datafree.optimizer)
        p.remember(t, Memory(generator=upload(generator), adam=adam))
        return {**metrics, "generator_loss": datafree.mean_loss}
