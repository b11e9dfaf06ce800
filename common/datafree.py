"""Data-free distillation: a generator learns what excites a teacher, a student what it answers.

FedKF's clients do it beside their own data, DAFL's server in place of data. The loop over batches
is ``fit``'s: ``DataFree`` turns the owner's batches into batches with images and answers added, and
trains the generator between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, final

import torch
from pydantic import Field
from torch import Tensor

from common import optimise, seeds
from common.config import NonNegative, Positive, Section
from common.data.dataset import Dataset
from common.fit import fit
from common.losses import datafree
from common.losses.distillation import kl
from common.models.batchnorm import batch_statistics
from common.models.classifier import Classifier
from common.models.generator import Generator
from common.models.initialise import he_convolutions

ADVERSARIAL = ("cifar10", "cifar100")
"""Data sets for which FedKF's released code adds the adversarial term."""


class Imagining(Section):
    """Knobs of the generator and of its losses."""

    lambda_oh: NonNegative
    """λ₁, the weight of the one-hot loss."""
    lambda_a: NonNegative
    """λ₂, the weight of the activation loss."""
    g_adv: Literal["auto", "on", "off"]
    """Also look for images on which teacher and student disagree; ``auto``: on CIFAR only."""
    ie_norm: bool
    """Information entropy as 1 − H/log C, not −H."""
    act_reduction: Literal["mean", "sum"]
    """L1 norm of the activations: mean over entries, or their sum."""
    update_order: Literal["student", "generator"]
    """Which of the two takes its step first on a batch."""
    generator_lr: Positive
    """β, of Adam."""
    latent: Annotated[int, Field(ge=1, le=100_000)]
    """Length of z."""
    generator_width: Annotated[int, Field(ge=2, le=4096)]
    """Channels of the generator: 128 in the paper; less for a CPU."""


@final
class DataFree:
    """A generator, a frozen teacher and a student at their common work.

    ``student``: takes its steps elsewhere, by an optimiser of the owner; ``gamma``: γ, the weight
    of the student's distillation, with which the adversarial term is weighed too; ``size``: images
    in a batch; ``draw``: where z comes from, on the networks' device; ``protect``: the student's
    BatchNorm layers keep their running statistics for real images.
    """

    def __init__(
        self,
        generator: Generator,
        teacher: Classifier,
        student: Classifier,
        options: Imagining,
        *,
        gamma: float,
        size: int,
        adversarial: bool,
        draw: torch.Generator,
        protect: bool = True,
    ) -> None:
        self.protect = protect
        self.generator, self.student = generator.train(), student
        self.teacher = teacher.eval().requires_grad_(False)
        self.options, self.gamma, self.size = options, gamma, size
        self.adversarial, self.draw = adversarial, draw
        self.optimizer = optimise.make(generator.parameters(), "adam", options.generator_lr)
        self.losses: list[float] = []  #: L_G of every step

    def batches(self, real: Iterable[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
        """Every batch of ``real`` with x̂ [size, C, H, W] and the teacher's logits added.

        The student's step on a batch is taken by whoever iterates, between two of them.
        """
        for batch in real:
            z = self.generator.latents(self.size, self.draw)
            images = self.generator(z)
            logits, features = self.teacher.with_activations(images)
            if self.options.update_order == "generator":
                self._step(images, logits, features)
                with torch.no_grad():
                    images = self.generator(z)
                    logits = self.teacher(images)
            yield *batch, images.detach(), logits.detach()
            if self.options.update_order == "student":
                self._step(images, logits, features)

    def distance(self, images: Tensor, logits: Tensor) -> Tensor:
        """KL(teacher ‖ student) on generated images (FedKF eq. 6).

        The student's BatchNorm layers normalise by the batch, and its dropout is off.
        """
        with batch_statistics(self.student, protect=self.protect):
            return kl(logits, self.student(images))

    def _step(self, images: Tensor, logits: Tensor, features: Tensor) -> None:
        """One step of Adam on L_G = L_IE + λ₁ L_OH + λ₂ L_A (FedKF eq. 5)."""
        o = self.options

        def loss(images: Tensor, logits: Tensor, features: Tensor) -> Tensor:
            value = datafree.information_entropy(logits, normalised=o.ie_norm)
            value = value + o.lambda_oh * datafree.one_hot(logits)
            value = value + o.lambda_a * datafree.activation(features, o.act_reduction)
            if self.adversarial:
                value = value - self.gamma * self.distance(images, logits.detach())
            return value

        # The graph from z to the features is there already; ``fit`` only descends it.
        frozen = (
            [p for p in self.student.parameters() if p.requires_grad] if self.adversarial else []
        )
        for p in frozen:
            p.requires_grad_(False)
        self.losses.append(fit(self.optimizer, [(images, logits, features)], loss)["loss"])
        for p in frozen:
            p.requires_grad_(True)

    @property
    def mean_loss(self) -> float:
        """Mean L_G over the steps so far."""
        return sum(self.losses) / len(self.losses)


def new_generator(options: Imagining, dataset: Dataset, seed: int) -> Generator:
    """The generator all owners start from, its weights drawn as in FedKF's released code.

    With torch's own, smaller ones it begins with images that are grey and nearly all alike.
    """
    with seeds.scope(seed, "init", "generator"):
        generator = Generator(
            options.latent,
            dataset.shape,
            mean=dataset.mean,
            std=dataset.std,
            width=options.generator_width,
        )
        he_convolutions(generator)
        return generator


def is_adversarial(options: Imagining, dataset: str) -> bool:
    """Whether the adversarial term is on for this data set."""
    return options.g_adv == "on" or (options.g_adv == "auto" and dataset in ADVERSARIAL)
