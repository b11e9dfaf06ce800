"""FedFTG, server half: average, then fine-tune on the images of a generator of hard samples."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common import progress, seeds
from common.exchange import tree
from common.exchange.records import StateDict
from common.losses import generation
from common.losses.distillation import soft_cross_entropy
from common.methods.fedftg import Options, Reply
from common.models.batchnorm import batch_statistics
from common.models.classifier import Classifier
from common.models.generator import Generator
from common.techniques.datafree import generator_of
from common.training import optimise
from common.training.fit import fit
from common.training.task import Task
from server_app.global_model import Averaged, Weights
from server_app.method import Client, Metrics, Replies


@final
class State(Weights, kind="fedftg.State"):
    """State after a round."""

    theta: StateDict  #: weights θ of the generator


@final
class FedFTG(Averaged[Options, Reply]):
    """Server with w ← Σ p_k w_k; w then distils the w_k on images of θ where w and w_k differ."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        g, task = self.config.generator, self.task
        with seeds.scope(task.seed, "init", "generator"):
            self.generator = generator_of(task, g.latent + task.num_classes, g.width)
        self.generator.to(task.device).train()
        self.theta = tree.snapshot(self.generator)

    def admit(self, client: Client) -> None:
        super().admit(client)
        if client.info.counts is None:
            raise ValueError(f"client {client.k} sends no class counts; set share-counts = true")

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        """Fine-tune w (the server's iterations of Algorithm 1); return scalars for the journal."""
        o, task = self.options, self.task
        o = o.model_copy(update={"iterations": self.server_steps(o.iterations)})
        if not o.iterations:
            return {}
        teachers = [self.build(self.global_spec, reply.w).eval() for _, reply in replies]
        for teacher in teachers:
            teacher.requires_grad_(False)
        student = self.build(self.global_spec, self.w)
        self.generator.load_state_dict(self.theta)
        adam = task.generator_optimizer(t, self.generator.parameters())
        sgd = optimise.make(student.parameters(), "sgd", o.server_lr, momentum=o.server_momentum)
        counts = torch.tensor([c.info.counts for c in replies.clients], dtype=torch.float64)
        game = Game(task, o, self.generator, student, teachers, counts, t)
        generated, distilled, precision = 0.0, 0.0, self.config.run.precision
        with ExitStack() as stack:
            stack.enter_context(seeds.scope(task.seed, "fine-tune", t))
            for net in [student, *(teachers if o.kd_teacher_bn == "batch" else [])]:
                stack.enter_context(batch_statistics(net))
            for _ in progress.steps(range(o.iterations), "iteration"):
                game.begin()
                student.requires_grad_(False)
                steps = game.latents(len(teachers), "generator step")
                generated += fit(adam, steps, game.generator_loss, precision=precision)["loss"]
                student.requires_grad_(True)
                steps = game.latents(o.student_steps, "student step")
                distilled += fit(sgd, steps, game.student_loss, precision=precision)["loss"]
        self.w, self.theta = tree.snapshot(student), tree.snapshot(self.generator)
        return {
            "generator_loss": generated / o.iterations,
            "distill_loss": distilled / o.iterations,
        }


@final
class Game:
    """The losses of round t's generator and student, and the noise for both.

    ``counts``: samples by teacher and class, n_k^y [K, C].
    """

    def __init__(
        self,
        task: Task,
        options: Options,
        generator: Generator,
        student: Classifier,
        teachers: Sequence[Classifier],
        counts: Tensor,
        t: int,
    ) -> None:
        self.task, self.options = task, options
        self.generator, self.student, self.teachers = generator, student, teachers
        self.p, self.alpha = (x.to(task.device) for x in label_weights(counts))
        self.draw = seeds.stream(task.seed, "fakes", t, device=task.device)
        self.noise = self._random_noise()
        self.fixed: tuple[Tensor, Tensor] | None = None  #: the noise of this iteration

    def begin(self) -> None:
        """Begin an iteration, which has one batch of noise if ``draw = "iteration"``."""
        self.fixed = next(self.noise) if self.options.draw == "iteration" else None

    def _random_noise(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield z [Q, latent] and y [Q], endlessly."""
        o, latent, p = self.options, self.task.config.generator.latent, self.p
        batches = 1 if o.draw == "iteration" else len(self.teachers) + o.student_steps
        while True:
            if o.labels == "apportioned":
                labels = apportioned(p, o.iterations * batches * o.generated, self.draw)
            else:
                labels = torch.multinomial(p, o.generated, replacement=True, generator=self.draw)
            for y in labels.split(o.generated):
                shape, device = (o.generated, latent), self.task.device
                yield torch.randn(shape, generator=self.draw, device=device), y

    def latents(self, count: int, name: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield z, y and the number of the batch; ``name``: name of the steps in reports."""
        for i in progress.steps(range(count), name):
            z, y = self.fixed or next(self.noise)
            yield z, y, torch.tensor(i)

    def _generate(self, z: Tensor, y: Tensor) -> Tensor:
        one_hot = F.one_hot(y, self.task.num_classes).to(z.dtype)
        x: Tensor = self.generator(torch.cat([z, one_hot], dim=1))
        return x

    def generator_loss(self, z: Tensor, y: Tensor, i: Tensor) -> Tensor:
        """Return the generator's loss for the teacher with number i."""
        o, x, weights = self.options, self._generate(z, y), self.alpha[int(i), y]
        logits = self.teachers[int(i)](x)
        value = o.lambda_cls * (weights * F.cross_entropy(logits, y, reduction="none")).mean()
        value = value + o.lambda_dis * generation.diversity(z, x) / len(self.teachers)
        logits = logits.detach() if o.detach_teacher else logits
        return value - (weights * generation.disagreement(logits, self.student(x))).mean()

    def student_loss(self, z: Tensor, y: Tensor, _: Tensor) -> Tensor:
        """Return the student's loss, the sum over all teachers."""
        with torch.no_grad():
            x = self._generate(z, y)
            targets = [teacher(x) for teacher in self.teachers]
        s = self.student(x)
        losses = [
            (self.alpha[k, y] * soft_cross_entropy(logits, s)).mean()
            for k, logits in enumerate(targets)
        ]
        return torch.stack(losses).sum()


def apportioned(p: Tensor, number: int, draw: torch.Generator) -> Tensor:
    """Return ``number`` labels in a random order; class c has the share p_c, except for rounding.

    p: shares [C]. Boundaries between classes are rounded down, as in the released code.
    """
    shares = p.double() / p.double().sum()
    ends = (shares.cumsum(0) * number + 1e-6).floor().long().clamp_max(number)
    ends[-1] = number
    counts = ends.diff(prepend=ends.new_zeros(1))
    labels = torch.arange(len(p), device=p.device).repeat_interleave(counts)
    return labels[torch.randperm(number, generator=draw, device=p.device)]


def label_weights(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return p(y) [C] ∝ Σ_k n_k^y and α_k^y = n_k^y / Σ_j n_j^y [K, C], float32.

    ``counts``: n_k^y [K, C]. A class without samples is never drawn; its α are 0.
    """
    totals = counts.sum(0)
    alpha = counts / totals.clamp_min(1)
    return (totals / totals.sum()).float(), alpha.float()
