"""Server halves that distil clients' models into one on generated images: DENSE, Co-Boosting.

``common/methods/dense.py`` has the equations. Every round has its own random streams: ``generated``
(weights, latents, labels and views of the generator), ``pool`` (the student's passes), and those
that a method adds.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import progress, seeds
from common.data.batches import AUGMENTS, Batches, crop, standardise, views
from common.exchange import tree
from common.losses import generation
from common.losses.distillation import kl
from common.methods.dense import OneShot as Settings
from common.methods.dense import Reply, Request
from common.models.batchnorm import distances
from common.models.classifier import Classifier
from common.models.ensemble import Ensemble
from common.models.generator import redraw
from common.techniques.datafree import generator_of
from common.training import optimise
from common.training.fit import fit
from common.training.task import Task
from server_app.global_model import GlobalModel
from server_app.method import Client, Metrics, Replies

S = TypeVar("S", bound=Settings)
ADAM = "betas = [0.5, 0.999]"  #: options of the generator's Adam


class OneShot(GlobalModel[S, Reply], ABC):
    """Server half whose w is a student of the round's clients on images from a generator."""

    one_shot = True
    ensemble: Ensemble
    """The ensemble of round ``t``; not set before the first round of this process."""

    def prepare(self) -> None:
        super().prepare()
        o, task = self.options, self.task
        self.t, self._streams = 0, dict[str, torch.Generator]()
        with seeds.scope(task.seed, "init", "generator"):
            net = generator_of(task, o.latent, o.width, eps=1e-5, bias=False)
        self.generator = net.to(task.device).train()

    def begin(self, clients: Sequence[Client]) -> None:
        self.check_sizes(clients)
        super().begin(clients)

    def request(self, t: int) -> Request:
        return Request()

    def check(self, client: Client, reply: Reply) -> None:
        spec = client.architecture
        tree.check_like(reply.w, self.task.expected(spec), f"w ({spec})")

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        o, task = self.options, self.task
        self.t, self._streams = t, {}
        self.ensemble = Ensemble([self.build(c.architecture, reply.w) for c, reply in replies])
        student = self.build(self.global_spec)
        sgd = optimise.make(
            student.parameters(),
            "sgd",
            o.student_lr,
            momentum=o.student_momentum,
            weight_decay=o.student_decay,
        )
        pool = Pool(task, o)
        generator_loss = student_loss = 0.0
        for e in progress.steps(range(o.epochs), "epoch"):
            images, y, least = self.generate(student)
            generator_loss += least / o.epochs
            self.improve(e, pool)
            pool.add(images, y)
            if o.student_cosine:
                for group in sgd.param_groups:
                    group["lr"] = o.student_lr * 0.5 * (1 + math.cos(math.pi * e / o.epochs))
            how = o.student_augment(self.config.data.name)
            batches = pool.batches(how, self.stream("pool"))
            student_loss = self.teach(student, sgd, batches)
        self.w = tree.snapshot(student)
        return {"generator_loss": generator_loss, "distill_loss": student_loss}

    def stream(self, name: str) -> torch.Generator:
        """Return round t's stream of this name, on the CPU; repeated calls continue it."""
        if name not in self._streams:
            self._streams[name] = seeds.stream(self.task.seed, "one-shot", name, self.t)
        return self._streams[name]

    def generate(self, student: Classifier) -> tuple[Tensor, Tensor, float]:
        """Train a new generator and return its batch of least loss, the labels and the loss.

        Images are [B, C, H, W] with pixels in (0, 1); labels [B], the targets, are ascending.
        """
        o, task, net, draw = self.options, self.task, self.generator, self.stream("generated")
        redraw(net, draw)
        z = nn.Parameter(net.latents(o.generated, draw).to(task.device))
        y = torch.randint(task.num_classes, (o.generated,), generator=draw).sort().values
        adam = optimise.make([z, *net.parameters()], "adam", o.generator_lr, options=ADAM)
        if o.clip:
            adam.register_step_pre_hook(lambda *_: _clip(net, o.clip))
        least, best = math.inf, torch.empty(0)

        def loss(y: Tensor) -> Tensor:
            nonlocal least, best
            images = net.pixels(z)
            x = self.seen(images)
            with distances(self.ensemble) if o.bn else nullcontext(list[Tensor]()) as apart:
                logits = self.ensemble(x)
            value = self.generator_loss(logits, y, student(x), apart)
            if (now := float(value.detach())) < least:
                least, best = now, images.detach()
            return value

        student.eval().requires_grad_(False)
        y = y.to(task.device)
        batches = progress.steps([(y,)] * o.generator_steps, "generator step")
        fit(adam, batches, loss, precision=self.config.run.precision)
        student.requires_grad_(True)
        return best, y, least

    def seen(self, images: Tensor) -> Tensor:
        """Return classifiers' input for images with pixels in [0, 1] while the generator trains."""
        o, task = self.options, self.task
        how = AUGMENTS[o.augment]
        if o.view == "augmented" and (how.flip or how.pad):
            size = images.shape[2], images.shape[3]
            rows, columns = views(len(images), size, how, self.stream("generated"))
            images = crop(images, rows.to(task.device), columns.to(task.device), how.pad)
        return standardise(images, task.mean, task.std, self.config.data.standardize)

    def generator_loss(
        self, teacher: Tensor, y: Tensor, student: Tensor, apart: Sequence[Tensor]
    ) -> Tensor:
        """Return the generator's loss.

        ``teacher`` [B, C]: logits of the ensemble; ``student`` [B, C]: logits of the student;
        ``apart``: the terms of L_BN, empty without it.
        """
        o = self.options
        everywhere = o.adversarial == "all"
        value = o.oh * self.one_hot(teacher, y)
        value = value - o.adv * generation.divergence(
            teacher, student, o.adv_temperature, everywhere=everywhere
        )
        return value + o.bn * torch.stack(list(apart)).sum() if apart else value

    def one_hot(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the loss of the ensemble's logits [B, C] for the labels [B]."""
        return F.cross_entropy(logits, y)

    def improve(self, e: int, pool: Pool) -> None:
        """Change the ensemble in epoch e ≥ 0, before the epoch's batch joins the pool."""

    def teach(self, student: Classifier, sgd: torch.optim.Optimizer, batches: Batches) -> float:
        """Train the student for one pass over the pool, and return the mean loss."""
        T = self.options.temperature

        def loss(x: Tensor, _: Tensor) -> Tensor:
            x = self.harder(x)
            with torch.no_grad():
                logits = self.ensemble(x)
            return T**2 * kl(logits, student(x), T)

        student.train()
        precision, counted = self.config.run.precision, progress.steps(batches, "student step")
        return fit(sgd, counted, loss, clip=self.options.clip, precision=precision)["loss"]

    def harder(self, x: Tensor) -> Tensor:
        """Return the student's input for a batch of normalised images."""
        return x

    def ensembles(self, nets: Sequence[Classifier]) -> dict[str, nn.Module]:
        return {"ensemble": self.ensemble} if self.t else {}


@final
class Pool:
    """A growing set of generated images and their target labels.

    Pixels are float32 in [0, 1] or uint8 (``pool-dtype``), on the device. The memory for all
    epochs, epochs · generated · C·H·W numbers, is allocated at once.
    """

    def __init__(self, task: Task, o: Settings) -> None:
        self.task, self.size, self.count = task, o.batch_size, 0
        most = o.epochs * o.generated
        dtype = torch.uint8 if o.pool_dtype == "uint8" else torch.float32
        self._x = torch.empty(most, *task.shape, dtype=dtype, device=task.device)
        self._y = torch.empty(most, dtype=torch.int64, device=task.device)

    def add(self, images: Tensor, y: Tensor) -> None:
        """Add images [n, C, H, W], float32 with pixels in [0, 1], and labels [n]."""
        end = self.count + len(y)
        if self._x.dtype == torch.uint8:
            images = images.clamp(0, 1).mul(255).to(torch.uint8)
        self._x[self.count : end], self._y[self.count : end] = images, y
        self.count = end

    @property
    def images(self) -> Tensor:
        """All images [n, C, H, W] in the order of their addition."""
        return self._x[: self.count]

    def batches(self, augment: str, draw: torch.Generator) -> Batches:
        """Return one pass over the images in a random order, normalised for classifiers."""
        return Batches(
            self.images,
            self._y[: self.count],
            batch_size=self.size,
            mean=self.task.mean,
            std=self.task.std,
            augment=augment,
            standardize=self.task.config.data.standardize,
            generator=draw,
        )


def _clip(net: nn.Module, norm: float) -> None:
    """Clip the gradient norm of a network's weights; gradients of inputs do not count."""
    nn.utils.clip_grad_norm_(net.parameters(), norm)
