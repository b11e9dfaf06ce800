"""Distillation on noise: the server's network learns the predictions of clients' networks on noise.

Raikwar and Mishra 2022, "Discovering and overcoming limitations of noise-engineered data-free
knowledge distillation": the predictions of networks with BatchNorm on noise are useful if BatchNorm
normalises by the statistics of the noise batch.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from common import progress, seeds
from common.data import noise
from common.exchange import tree
from common.exchange.records import StateDict
from common.losses.distillation import kl, kl_from, max_ensemble
from common.models.batchnorm import batch_statistics
from common.settings.options import NoiseTraining
from common.training import optimise
from common.training.fit import fit
from server_app.global_model import GlobalModel
from server_app.method import O, U

Transfer = Callable[[list[Tensor], Tensor], Tensor]
"""Function from the teachers' logits and the student's, each [n, C], to the student's loss."""


def distil(
    method: GlobalModel[O, U], t: int, teachers: Sequence[tuple[str, StateDict]], transfer: Transfer
) -> float:
    """Distil ``teachers`` (architecture, weights) into w on new noise; return the mean loss.

    The settings are those of [noise]. The teachers' weights do not change.
    """
    o, task = method.config.noise, method.task
    nets = {spec: method.build(spec, weights).eval() for spec, weights in teachers}
    student = method.build(method.global_spec, method.w)
    optimizer = optimise.of(student.parameters(), o, t, method.config.run.rounds)

    def loss(z: Tensor) -> Tensor:
        with torch.no_grad():
            targets = []
            for spec, weights in teachers:  # one network per architecture takes less memory
                nets[spec].load_state_dict(weights)
                targets.append(nets[spec](z))
        return transfer(targets, student(z))

    draw = seeds.stream(task.seed, "noise", t, device=task.device)
    steps = method.server_steps(o.epochs * o.batches)
    zs = noise.batches(o.kind, steps, o.batch_size, task.shape, draw)
    with ExitStack() as stack:
        stack.enter_context(seeds.scope(task.seed, "distil", t))
        stack.enter_context(batch_statistics(student, protect=o.protect_running_stats))
        if o.teacher_bn == "batch":
            for teacher in nets.values():
                stack.enter_context(batch_statistics(teacher))
        counted = progress.steps(zs, "noise batch", steps)
        metrics = fit(optimizer, counted, loss, precision=task.config.run.precision)
    method.w = tree.snapshot(student)
    return metrics["loss"]


def weighted(
    kd: Callable[[Tensor, Tensor, float], Tensor], weights: Sequence[float], T: float
) -> Transfer:
    """Return the loss Σ_i weights_i · kd(teacher_i → student) (FedORION, equation 3)."""

    def transfer(teachers: list[Tensor], student: Tensor) -> Tensor:
        losses = [p * kd(y, student, T) for p, y in zip(weights, teachers, strict=True)]
        return torch.stack(losses).sum()

    return transfer


def combined(o: NoiseTraining, teachers: int, how: str = "combine") -> Transfer:
    """Return the mean of KL(teacher_i → student), by the settings of [noise].

    ``how = "ensemble"``: KL(max_i softmax(teacher_i) ‖ student); the maximum is over teachers.
    """
    norm, T = o.max_norm, o.temperature
    if how == "ensemble":
        return lambda teachers, student: kl_from(max_ensemble(teachers, norm, T), student, T)
    return weighted(kl, [1 / teachers] * teachers, T)
