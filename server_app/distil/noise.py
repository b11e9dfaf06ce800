"""Distillation on noise: the server's network learns what the clients' networks say about nothing.

Raikwar and Mishra 2022, "Discovering and overcoming limitations of noise-engineered data-free
knowledge distillation": networks with BatchNorm answer noise usefully when they normalise by the
noise batch's own statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from common import noise, optimise, seeds, tree
from common.fit import fit
from common.losses.max_ensemble import kl_from, max_ensemble
from common.models.batchnorm import batch_statistics
from common.noise.distillation import NoiseDistillation
from common.records import StateDict
from server_app.method import Method

Transfer = Callable[[list[Tensor], Tensor], Tensor]
"""Teachers' logits and the student's, each [n, C], to the loss that the student descends."""


def distil(
    method: Method[Any],
    t: int,
    w: StateDict,
    teachers: Sequence[tuple[str, StateDict]],
    transfer: Transfer,
) -> tuple[StateDict, float]:
    """Round t's distillation of ``teachers`` (architecture, weights) into ``w``, on fresh noise.

    The settings are those of ``method``'s section, a ``NoiseDistillation``. The new weights of the
    global architecture and the mean loss; the teachers and ``w`` are left as they are.
    """
    o: NoiseDistillation = method.config.method
    run, device = method.config.run, method.device
    frozen = [method.build(spec, weights).eval() for spec, weights in teachers]
    student = method.build(method.global_spec, w)
    optimizer = optimise.make(student.parameters(), "sgd", o.server_lr, momentum=o.server_momentum)

    def loss(z: Tensor) -> Tensor:
        with torch.no_grad():
            targets = [teacher(z) for teacher in frozen]
        return transfer(targets, student(z))

    zs = noise.batches(
        o.noise,
        o.server_epochs * o.noise_batches,
        o.noise_batch_size,
        method.dataset.shape,
        seeds.stream(run.seed, "noise", t, device=device),
    )
    with ExitStack() as stack:
        stack.enter_context(seeds.scope(run.seed, "distil", t))
        stack.enter_context(batch_statistics(student, protect=o.protect_running_stats))
        if o.kd_teacher_bn == "batch":
            for teacher in frozen:
                stack.enter_context(batch_statistics(teacher))
        metrics = fit(optimizer, zs, loss, precision=run.precision)
    return tree.snapshot(student), metrics["loss"]


def weighted(
    kd: Callable[[Tensor, Tensor, float], Tensor], weights: Sequence[float], T: float
) -> Transfer:
    """Σ_i weights_i · kd(teacher_i → student): every teacher is heard (FedORION, equation 3)."""

    def transfer(teachers: list[Tensor], student: Tensor) -> Tensor:
        losses = [p * kd(y, student, T) for p, y in zip(weights, teachers, strict=True)]
        return torch.stack(losses).sum()

    return transfer


def largest(norm: str, T: float) -> Transfer:
    """KL(max_i softmax(teacher_i) ‖ student): for each class the most convinced teacher counts."""
    return lambda teachers, student: kl_from(max_ensemble(teachers, norm, T), student, T)
