"""What a network costs: multiply-accumulates of a forward pass, and passes in training."""

import math
from collections import Counter
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from common.models.batchnorm import restored


def macs(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-adds of convolutions and linear layers for one input of ``shape`` (no batch axis).

    Norms, activations, poolings and biases are left out, as papers do. ``model`` runs once, in eval
    mode and on zeros, on the device it is on (``meta`` will do), and is left as it was.
    """
    total = 0

    def add(module: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Linear):
            total += output.numel() * module.in_features
        elif isinstance(module, nn.Conv2d):
            window = math.prod(module.kernel_size) * module.in_channels // module.groups
            total += output.numel() * window

    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    first = next(model.parameters())
    try:
        with restored(model), torch.no_grad():
            model.eval()
            model(torch.zeros(1, *shape, device=first.device, dtype=first.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return total


class Passes(NamedTuple):
    """Whole passes; a pass through a part counts by the halves (FedKF, Table IX)."""

    forward: float
    backward: float


@final
class PassCounter:
    """Counts the passes through ``net`` from now on, by hooks on its first and its last layer.

    A pass that enters behind the first layer, as generated features do, touches the last one alone
    and counts one half. A backward pass counts when gradients reach a layer's outputs, be it for
    its weights or for its inputs.
    """

    def __init__(self, net: nn.Module) -> None:
        layers = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        self.counts: Counter[str] = Counter()
        self._handles = []
        for layer in (layers[0], layers[-1]):
            self._handles.append(layer.register_forward_hook(self._count("forward")))
            self._handles.append(layer.register_full_backward_hook(self._count("backward")))

    def _count(self, way: str) -> Any:
        def hook(*_: Any) -> None:
            self.counts[way] += 1

        return hook

    @property
    def passes(self) -> Passes:
        return Passes(self.counts["forward"] / 2, self.counts["backward"] / 2)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
