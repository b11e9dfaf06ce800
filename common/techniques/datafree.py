"""Data-free distillation: a student learns a teacher's logits on images from a generator.

The generator is trained to make images that activate the teacher. FedKF's clients use it beside
their own data, DAFL's server in place of data. ``fit`` loops over the batches: ``DataFree`` adds
images and the teacher's logits to each batch, and trains the generator between batches.
"""

from collections.abc import Iterable, Iterator
from typing import final

import torch
from torch import Tensor

from common import progress, seeds
from common.exchange.records import StateDict
from common.losses import generation
from common.losses.distillation import kl
from common.models.batchnorm import batch_statistics
from common.models.classifier import Classifier
from common.models.generator import EPS, FeatureGenerator, Generator
from common.models.layers import he_convolutions
from common.training import optimise
from common.training.fit import fit, forward
from common.training.task import Task

CIFAR = ("cifar10", "cifar100")
"""Data sets for which FedKF's released code adds the adversarial term."""


@final
class DataFree:
    """A generator, a frozen teacher and a student.

    ``optimizer``: the generator's; None: the generator is not trained. ``student``: trained by the
    caller's optimiser. ``gamma``: γ, weight of the student's distillation and of the adversarial
    term. ``size``: images in a batch. ``name``: stream of the latents z. ``protect``: whether
    to keep generated images out of the running statistics of the student's BatchNorm layers.
    """

    def __init__(
        self,
        task: Task,
        generator: Generator,
        teacher: Classifier,
        student: Classifier,
        optimizer: torch.optim.Optimizer | None,
        *name: str | int,
        gamma: float,
        size: int,
        protect: bool = True,
    ) -> None:
        self.options, self.precision = task.config.generator, task.config.run.precision
        self.generator, self.student = generator.train(), student
        self.teacher = teacher.eval().requires_grad_(False)
        self.optimizer, self.gamma, self.size, self.protect = optimizer, gamma, size, protect
        self.adversarial = is_adversarial(task)
        self.draw = seeds.stream(task.seed, *name, device=task.device)
        self.losses: list[float] = []  #: L_G of every step

    def batches(self, real: Iterable[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
        """Yield each batch of ``real`` with x̂ [size, C, H, W] and the teacher's logits added.

        The caller takes the student's step on a batch before the next one.
        """
        optimizer = self.optimizer
        for batch in progress.steps(real, "generator step"):
            z = self.generator.latents(self.size, self.draw)
            with torch.set_grad_enabled(optimizer is not None), forward(self.precision, z.device):
                images = self.generator(z)
                logits, features = self.teacher.with_activations(images)
            if optimizer is not None and self.options.update_order == "generator":
                self._step(optimizer, images, logits, features)
                with torch.no_grad(), forward(self.precision, z.device):
                    images = self.generator(z)
                    logits = self.teacher(images)
            yield *batch, images.detach(), logits.detach()
            if optimizer is not None and self.options.update_order == "student":
                self._step(optimizer, images, logits, features)

    def distance(self, images: Tensor, logits: Tensor) -> Tensor:
        """Return KL(teacher ‖ student) on generated images (FedKF eq. 6).

        The student's BatchNorm layers normalise by the batch, and its dropout is off.
        """
        with batch_statistics(self.student, protect=self.protect):
            return kl(logits, self.student(images))

    def _step(self, optimizer: torch.optim.Optimizer, *batch: Tensor) -> None:
        """Take a step of the generator on L_G = L_IE + λ₁ L_OH + λ₂ L_A (FedKF eq. 5)."""
        o = self.options

        def loss(images: Tensor, logits: Tensor, features: Tensor) -> Tensor:
            value = generation.information_entropy(logits, normalised=o.ie_norm)
            value = value + o.lambda_oh * generation.one_hot(logits)
            value = value + o.lambda_a * generation.activation(features, o.act_reduction)
            if self.adversarial:
                value = value - self.gamma * self.distance(images, logits.detach())
            return value

        # The graph from z to the features exists already, so ``fit`` only goes backward.
        frozen = [p for p in self.student.parameters() if p.requires_grad and self.adversarial]
        for p in frozen:
            p.requires_grad_(False)
        self.losses.append(fit(optimizer, [batch], loss, precision=self.precision)["loss"])
        for p in frozen:
            p.requires_grad_(True)

    @property
    def mean_loss(self) -> float:
        """Mean L_G over the steps so far."""
        return sum(self.losses) / len(self.losses)


def new_feature_generator(task: Task, net: Classifier, noise: int, hidden: int) -> FeatureGenerator:
    """Return the common initial generator of features in front of ``net``'s head."""
    with seeds.scope(task.seed, "init", "generator"):
        return FeatureGenerator(noise, task.num_classes, net.head.in_features, hidden)


def generator_of(
    task: Task, latent: int, width: int, *, eps: float = EPS, bias: bool = True
) -> Generator:
    """Return a generator of the task's samples with torch's initial weights; see ``Generator``."""
    mean, std = task.mean, task.std
    return Generator(latent, task.shape, mean=mean, std=std, width=width, eps=eps, bias=bias)


def new_generator(task: Task) -> Generator:
    """Return the initial generator of all owners, its weights drawn as in FedKF's released code.

    torch's own initial weights are smaller and give grey images that hardly differ.
    """
    options = task.config.generator
    with seeds.scope(task.seed, "init", "generator"):
        generator = generator_of(task, options.latent, options.width)
        he_convolutions(generator)
        return generator


def resumed_generator(
    task: Task, t: int, theta: StateDict | None, adam: dict[int, StateDict]
) -> tuple[Generator, torch.optim.Optimizer]:
    """Return a generator with θ, if there is one, and round t's optimiser with moments ``adam``."""
    generator = new_generator(task)
    if theta is not None:
        generator.load_state_dict(theta)
    optimizer = task.generator_optimizer(t, task.place(generator).parameters())
    return generator, optimise.restore_moments(optimizer, adam)


def is_adversarial(task: Task) -> bool:
    """Return whether the adversarial term is on for this task's data set."""
    chosen, data = task.config.generator.adversarial, task.config.data.name
    return chosen == "on" or (chosen == "cifar" and data in CIFAR)
