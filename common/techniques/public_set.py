"""Public-set functions that server and clients share.

The images themselves come from ``common/data`` (``divide``).
"""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from math import ceil
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

from common import seeds
from common.data import divide
from common.models.batchnorm import batch_statistics
from common.models.classifier import Classifier
from common.settings.config import Config, MethodOptions
from common.training import optimise
from common.training.fit import Loss, fit
from common.training.optimise import Moments
from common.training.task import Task, epochs


class OnPublicSet(MethodOptions):
    """Options of methods whose server or clients use public images."""

    uses: ClassVar[tuple[str, ...]] = ("public",)

    def check(self, config: Config) -> None:
        super().check(config)
        if not (config.data.public or config.data.elsewhere):
            raise ValueError(
                f"method = {config.run.method!r} needs a public set: set data.public (0.8 in "
                "DL-MH's paper), data.public-name or data.public-dir"
            )

    def check_labels(self, config: Config, setting: str) -> None:
        """Raise ``ValueError`` for a ``setting`` that needs labels if the public set has none."""
        if divide(config.data, config.partition_seed).labels is None:
            raise ValueError(
                f"{config.run.method}.{setting} needs a public set with the task's classes"
            )


def subset(task: Task, t: int, size: int) -> Tensor:
    """Return A_t, the indices of round t's public samples among ``size``: int64 [n], ascending.

    n is ``public.subset``; A_t has all samples if n is 0 or not below ``size``. Server and clients
    draw the same indices from the stream "subset", so that messages do not carry them.
    """
    n = task.config.public.subset
    if not 0 < n < size:
        return torch.arange(size)
    chosen = seeds.rng(task.seed, "subset", t).choice(size, size=n, replace=False)
    return torch.from_numpy(chosen).sort().values


def digest(
    task: Task,
    t: int,
    net: Classifier,
    x: Tensor,
    targets: Tensor,
    loss: Loss,
    *name: str | int,
    moments: Moments | None = None,
    steps: Callable[[int], int] = int,
) -> float:
    """Train ``net`` on ``targets`` [n, ...] for public images x [n, C, H, W]; return the mean loss.

    The settings are those of [public]; with ``public.learn = false`` the loss is 0. ``loss`` takes
    the network's logits and the targets of a batch. ``name`` and t name the random streams.
    ``moments``: as for ``Task.fit``. ``steps``: number of training steps, of those that [public]
    sets. Images are not augmented, because the targets hold for the original images.
    """
    o = task.config.public
    if not o.learn:
        return 0.0
    batches = task.batches(x, targets, *name, t, size=o.batch_size, augment="none")
    optimizer = optimise.of(net.parameters(), o, t, task.config.run.rounds)
    if moments is not None:
        optimise.restore_moments(optimizer, moments.state)
    count = steps(o.epochs * len(batches))
    if o.anneal:
        schedule = CosineAnnealingLR(optimizer, count)
        optimizer.register_step_post_hook(lambda *_: schedule.step())
    net.train()
    protected = batch_statistics(net) if o.protect_running_stats else nullcontext()
    with seeds.scope(task.seed, *name, t), protected:
        metrics = fit(
            optimizer,
            islice(epochs(batches, ceil(count / len(batches))), count),
            lambda images, y: loss(net(images), y),
            precision=task.config.run.precision,
        )
    if moments is not None:
        moments.state = optimise.moments(optimizer)
    return metrics["loss"]
