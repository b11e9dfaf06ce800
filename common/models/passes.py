"""How often data go through a network, forwards and backwards: the cost of a method's batch."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple, final

from torch import nn


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
