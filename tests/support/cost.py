"""Costs of a network: multiply-adds of a forward pass, and number of passes in training."""

from collections import Counter
from typing import Any, NamedTuple, final

import torch
from torch import nn

from common.models.batchnorm import restored
from common.training.costs import counting


def macs(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the multiply-adds of convolutions and linear layers for one input of ``shape``.

    ``shape`` has no batch axis. As in papers, norms, activations, poolings and biases do not count.
    ``model`` runs once on zeros in eval mode, on its own device (may be ``meta``), and is restored.
    """
    first = next(model.parameters())
    with restored(model), torch.no_grad(), counting(True) as counter:
        model.eval()
        model(torch.zeros(1, *shape, device=first.device, dtype=first.dtype))
    return counter.total // 2


class Passes(NamedTuple):
    """Numbers of passes; a pass through the last part counts one half (FedKF, Table IX)."""

    forward: float
    backward: float


@final
class PassCounter:
    """Counter of the passes through ``net``, by hooks on its first and its last layer.

    A pass that starts after the first layer, as with generated features, reaches only the last one
    and counts one half. A backward pass counts when gradients reach a layer's outputs.
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
