"""BatchNorm on the statistics of the batch at hand, and what its running statistics ought to be.

Networks asked about Gaussian noise must normalise with the noise batch's own statistics, and that
must leave no trace in the running ones (noise distillation, FedORION's Algorithm 1). Calling
``model.train()`` would do the first, ruin the second and switch dropout on as well.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from common.exchange.records import StateDict

MEAN, VARIANCE = "running_mean", "running_var"


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


def statistics(model: nn.Module) -> StateDict:
    """The running means and variances of ``model`` by their names in its state dict, as float64
    (C) on the CPU. A layer that has none, or is no BatchNorm, has no entry.
    """
    return {
        f"{name}.{buffer}": norm.get_buffer(buffer).detach().cpu().to(torch.float64)
        for name, norm in _tracked(model)
        for buffer in (MEAN, VARIANCE)
    }


@torch.no_grad()
def measure(model: nn.Module, batches: Iterable[Tensor], *, by_batch: bool) -> StateDict:
    """Mean and population variance of every BatchNorm layer's inputs over ``batches`` of images
    (n, C, H, W), of each channel over samples and places, named as ``statistics``.

    ``by_batch``: the layers normalise by the batch at hand, else by their running statistics, which
    stay as they are. Sums run in float64. A layer that no batch reaches keeps what it has.
    """
    found = {name: Moments() for name, _ in _tracked(model)}
    names: dict[nn.Module, str] = {
        norm: name for name, norm in _tracked(model)
    }  # of one under several names, the last

    def look(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found[names[norm]].add(inputs[0])

    with _watched(names, look), batch_statistics(model) if by_batch else restored(model):
        if not by_batch:
            model.eval()
        for x in batches:
            model(x)
    measured = statistics(model)
    for name, norm in _tracked(model):
        if (moments := found[names[norm]]).count:
            measured[f"{name}.{MEAN}"] = moments.mean.cpu()
            measured[f"{name}.{VARIANCE}"] = (moments.squares / moments.count).cpu()
    return measured


@contextlib.contextmanager
def distances(model: nn.Module) -> Iterator[list[Tensor]]:
    """How far each BatchNorm layer's inputs are from its running statistics, forward by forward.

    The list grows by a scalar for each layer at each forward within the block, which keep their
    graphs: ‖σ²_run − σ²‖₂ + ‖μ_run − μ‖₂ over the channels, σ² the batch's population variance.
    Yin et al. 2020, "Dreaming to Distill" (DeepInversion), eq. 4, with norms that are not squared.
    """
    found: list[Tensor] = []

    def look(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1)
        variance, mean = torch.var_mean(values, 1, correction=0)
        running_mean, running_variance = norm.get_buffer(MEAN), norm.get_buffer(VARIANCE)
        found.append((running_variance - variance).norm() + (running_mean - mean).norm())

    layers = dict.fromkeys(norm for _, norm in _tracked(model))  # once each, in order
    with _watched(layers, look):
        yield found


@contextlib.contextmanager
def _watched(
    layers: Iterable[nn.Module], look: Callable[[nn.Module, tuple[Tensor, ...]], None]
) -> Iterator[None]:
    """Within the block each layer's inputs are looked at before its forward."""
    with contextlib.ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(look))
        yield


@final
class Moments:
    """Count, mean and sum of squared deviations of values that come in parts (Chan et al. 1983)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = torch.zeros(())

    def add(self, x: Tensor) -> None:
        """Values of each channel: ``x`` (n, C, ...)."""
        values = x.to(torch.float64).transpose(0, 1).flatten(1)
        count, mean = values.shape[1], values.mean(1)
        squares = (values - mean[:, None]).square().sum(1)
        if not self.count:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total, apart = self.count + count, mean - self.mean
        self.mean = self.mean + apart * (count / total)
        self.squares = self.squares + squares + apart.square() * (self.count * count / total)
        self.count = total


def _tracked(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    """The BatchNorm layers with running statistics, under every name they have."""
    return [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    ]
