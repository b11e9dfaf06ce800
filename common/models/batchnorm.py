"""BatchNorm on the statistics of the batch at hand, and running statistics measured anew.

Networks asked about Gaussian noise must normalise with the noise batch's own statistics, and that
must leave no trace in the running ones (noise distillation, FedORION's Algorithm 1). Calling
``model.train()`` would do the first, ruin the second and switch dropout on as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextlib.contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Put every module's train or eval mode back at the end, also after an exception."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def norms(model: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers of ``model``; GroupNorm has no running statistics to care for."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextlib.contextmanager
def batch_statistics(model: nn.Module, *, protect: bool = True) -> Iterator[None]:
    """Within the block BatchNorm normalises by the batch and all other layers are in eval mode.

    With ``protect`` the running statistics are neither read nor written; without, they are updated
    as in training. Gradients flow as in train mode. Modes are restored at the end, also after an
    exception. A batch must give every channel more than one value, as in training.
    """
    tracking = [(norm, norm.track_running_stats) for norm in norms(model)]
    with restored(model):
        try:
            model.eval()
            for norm, tracks in tracking:
                norm.train()
                norm.track_running_stats = tracks and not protect
            yield
        finally:
            for norm, tracks in tracking:
                norm.track_running_stats = tracks


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics by the mean of those of ``batches`` of images (n, C, H, W).

    Every batch counts the same (a cumulative average). Without a batch there is nothing to measure:
    ``ValueError``, and the model is left as it was.
    """
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        raise ValueError("recalibrate needs at least one batch of images, got none")
    momenta = [(norm, norm.momentum) for norm in norms(model)]
    try:
        for norm, _ in momenta:
            norm.reset_running_stats()
            norm.momentum = None
        with batch_statistics(model, protect=False):
            model(first)
            for x in batches:
                model(x)
    finally:
        for norm, momentum in momenta:
            norm.momentum = momentum
