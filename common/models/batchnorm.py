"""BatchNorm with batch statistics, and measurement of the running statistics.

Networks that receive Gaussian noise must normalise with the statistics of the noise batch, without
changing the running statistics (noise distillation, FedORION's Algorithm 1). ``model.train()``
would use batch statistics, but it would also change the running ones and enable dropout.
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
    """Restore every module's train or eval mode at the end, also after an exception."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers of ``model``; GroupNorm has no running statistics."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextlib.contextmanager
def batch_statistics(model: nn.Module, *, protect: bool = True) -> Iterator[None]:
    """Normalise with batch statistics in BatchNorm, with all other layers in eval mode.

    With ``protect`` the running statistics are neither read nor written; without it they are
    updated as in training. Gradients flow as in train mode. Modes are restored at the end, also
    after an exception. A batch must have more than one value per channel, as in training.
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
    """Return the running means and variances of ``model`` by state-dict name, float64 (C) on CPU.

    Only BatchNorm layers with running statistics have entries.
    """
    return {
        f"{name}.{buffer}": norm.get_buffer(buffer).detach().cpu().to(torch.float64)
        for name, norm in _tracked(model)
        for buffer in (MEAN, VARIANCE)
    }


@torch.no_grad()
def measure(model: nn.Module, batches: Iterable[Tensor], *, by_batch: bool) -> StateDict:
    """Return mean and population variance of every BatchNorm layer's inputs over ``batches``.

    ``batches``: images (n, C, H, W). Moments are per channel, over samples and positions, in
    float64, with the names of ``statistics``. ``by_batch``: the layers normalise with batch
    statistics, else with their running statistics, which do not change. A layer that receives no
    batch keeps its current statistics.
    """
    moments_of = {name: Moments() for name, _ in _tracked(model)}
    names: dict[nn.Module, str] = {
        norm: name for name, norm in _tracked(model)
    }  # the last name of a layer with several names

    def observe(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        moments_of[names[norm]].add(inputs[0])

    with _observed(names, observe), batch_statistics(model) if by_batch else restored(model):
        if not by_batch:
            model.eval()
        for x in batches:
            model(x)
    measured = statistics(model)
    for name, norm in _tracked(model):
        if (moments := moments_of[names[norm]]).count:
            measured[f"{name}.{MEAN}"] = moments.mean.cpu()
            measured[f"{name}.{VARIANCE}"] = (moments.squares / moments.count).cpu()
    return measured


@contextlib.contextmanager
def distances(model: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list of distances between each BatchNorm layer's inputs and its running statistics.

    Each forward pass in the context appends one scalar per layer, with its graph:
    ‖σ²_run − σ²‖₂ + ‖μ_run − μ‖₂ over the channels, where σ² is the batch's population variance.
    Yin et al. 2020, "Dreaming to Distill" (DeepInversion), eq. 4, with norms that are not squared.
    """
    terms: list[Tensor] = []

    def observe(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1)
        variance, mean = torch.var_mean(values, 1, correction=0)
        running_mean, running_variance = norm.get_buffer(MEAN), norm.get_buffer(VARIANCE)
        terms.append((running_variance - variance).norm() + (running_mean - mean).norm())

    layers = dict.fromkeys(norm for _, norm in _tracked(model))  # unique, in order
    with _observed(layers, observe):
        yield terms


@contextlib.contextmanager
def _observed(
    layers: Iterable[nn.Module], observe: Callable[[nn.Module, tuple[Tensor, ...]], None]
) -> Iterator[None]:
    """Call ``observe`` with each layer's inputs before its forward pass."""
    with contextlib.ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(observe))
        yield


@final
class Moments:
    """Running count, mean and sum of squared deviations per channel (Chan et al. 1983)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = torch.zeros(())

    def add(self, x: Tensor) -> None:
        """Add the values of each channel of ``x`` (n, C, ...)."""
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
    """Return the BatchNorm layers with running statistics, once for every name."""
    return [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    ]
