"""FedFTG, server half: average, then fine-tune on the images of a generator of hard samples."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common import progress, seeds
from common.exchange import tree
from common.exchange.records import StateDict
from common.losses import generation
from common.methods.fedftg import Options, Reply
from common.models.batchnorm import batch_statistics
from common.models.generator import Generator
from common.training import optimise
from common.training.fit import fit
from server_app.global_model import Averaged, Weights
from server_app.method import Client, Metrics, Replies


@final
class State(Weights, kind="fedftg.State"):
    """State after a round."""

    theta: StateDict  #: weights θ of the generator


@final
class FedFTG(Averaged[Options, Reply]):
    """Server with w ← Σ p_k w_k; w then distils the w_k on images of θ where w and w_k differ."""

    reply_type, state_type = Reply, State

    def prepare(self) -> None:
        super().prepare()
        g, task = self.config.generator, self.task
        with seeds.scope(task.seed, "init", "generator"):
            self.generator = Generator(
                g.latent + task.num_classes, task.shape, mean=task.mean, std=task.std, width=g.width
            )
        self.generator.to(task.device).train()
        self.theta = tree.snapshot(self.generator)

    def admit(self, client: Client) -> None:
        super().admit(client)
        if client.info.counts is None:
            raise ValueError(f"client {client.k} sends no class counts; set share-counts = true")

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        """Fine-tune w (the server's iterations of Algorithm 1); return scalars for the journal."""
        o, g, task = self.options, self.config.generator, self.task
        if not o.iterations:
            return {}
        counts = torch.tensor(
            [client.info.counts for client in replies.clients], dtype=torch.float64
        )
        p, alpha = (x.to(task.device) for x in label_weights(counts))
        teachers = [self.build(self.global_spec, reply.w).eval() for _, reply in replies]
        for teacher in teachers:
            teacher.requires_grad_(False)
        student = self.build(self.global_spec, self.w)
        self.generator.load_state_dict(self.theta)
        adam = task.generator_optimizer(t, self.generator.parameters())
        sgd = optimise.make(student.parameters(), "sgd", o.server_lr, momentum=o.server_momentum)
        draw = seeds.stream(task.seed, "fakes", t, device=task.device)

        def drawn() -> Iterator[tuple[Tensor, Tensor]]:
            """Yield z [Q, latent] and y [Q], endlessly."""
            batches = 1 if o.draw == "iteration" else len(teachers) + o.student_steps
            while True:
                if o.labels == "apportioned":
                    labels = apportioned(p, o.iterations * batches * o.generated, draw)
                else:
                    labels = torch.multinomial(p, o.generated, replacement=True, generator=draw)
                for y in labels.split(o.generated):
                    z = torch.randn(o.generated, g.latent, generator=draw, device=task.device)
                    yield z, y

        def latents(count: int, name: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            """Yield z, y and the number of the batch; ``name``: name of the steps in reports."""
            for i in progress.steps(range(count), name):
                z, y = fixed or next(noise)
                yield z, y, torch.tensor(i)

        def generate(z: Tensor, y: Tensor) -> Tensor:
            one_hot = F.one_hot(y, task.num_classes).to(z.dtype)
            x: Tensor = self.generator(torch.cat([z, one_hot], dim=1))
            return x

        def generator_loss(z: Tensor, y: Tensor, i: Tensor) -> Tensor:
            x, weights = generate(z, y), alpha[int(i), y]
            logits = teachers[int(i)](x)
            value = o.lambda_cls * generation.weighted_cross_entropy(logits, y, weights)
            value = value + o.lambda_dis * generation.diversity(z, x) / len(teachers)
            logits = logits.detach() if o.detach_teacher else logits
            return value - generation.disagreement(logits, student(x), weights)

        def student_loss(z: Tensor, y: Tensor, _: Tensor) -> Tensor:
            with torch.no_grad():
                x = generate(z, y)
                targets = [teacher(x) for teacher in teachers]
            s = student(x)
            losses = [
                generation.weighted_soft_cross_entropy(logits, s, alpha[k, y])
                for k, logits in enumerate(targets)
            ]
            return torch.stack(losses).sum()

        generated, distilled, noise, precision = 0.0, 0.0, drawn(), self.config.run.precision
        fixed: tuple[Tensor, Tensor] | None = None
        with ExitStack() as stack:
            stack.enter_context(seeds.scope(task.seed, "fine-tune", t))
            for net in [student, *(teachers if o.kd_teacher_bn == "batch" else [])]:
                stack.enter_context(batch_statistics(net))
            for _ in progress.steps(range(o.iterations), "iteration"):
                fixed = next(noise) if o.draw == "iteration" else None
                student.requires_grad_(False)
                for_generator = latents(len(teachers), "generator step")
                generated += fit(adam, for_generator, generator_loss, precision=precision)["loss"]
                student.requires_grad_(True)
                for_student = latents(o.student_steps, "student step")
                distilled += fit(sgd, for_student, student_loss, precision=precision)["loss"]
        self.w, self.theta = tree.snapshot(student), tree.snapshot(self.generator)
        return {
            "generator_loss": generated / o.iterations,
            "distill_loss": distilled / o.iterations,
        }


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
