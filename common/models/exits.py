"""Networks with a classifier after each stage, cut to a depth (DepthFL).

Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients", ICLR 2023; the layers
follow the first author's code for Flower. The network of depth d has the stem, stages 1 … d and
exits 1 … d of the full network under the same names, so that every deeper network contains it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models.classifier import Classifier, Split, pooled
from common.models.layers import he_convolutions

Kind = Literal["bottleneck", "linear"]
Layers = tuple[Callable[..., nn.Module], Callable[[int], nn.Module], str]
"""Convolution, norm and interpolation of maps with one or two axes."""


IMAGES: Layers = (nn.Conv2d, nn.BatchNorm2d, "bilinear")
SIGNALS: Layers = (nn.Conv1d, nn.BatchNorm1d, "linear")


def separable(inputs: int, outputs: int, layers: Layers = IMAGES) -> nn.Sequential:
    """Return SepConv: two depthwise-separable convolutions with norm and ReLU, strides 2 and 1."""
    convolution, norm, _ = layers
    return nn.Sequential(
        convolution(inputs, inputs, 3, 2, 1, groups=inputs, bias=False),
        convolution(inputs, inputs, 1, bias=False),
        norm(inputs),
        nn.ReLU(),
        convolution(inputs, inputs, 3, 1, 1, groups=inputs, bias=False),
        convolution(inputs, outputs, 1, bias=False),
        norm(outputs),
        nn.ReLU(),
    )


@final
class Exit(Classifier):
    """Classifier after a stage. ``widths``: channels of this stage and of all later stages.

    ``layers``: layers of its bottleneck, for images or for signals.

    ``bottleneck``: the stage's maps x times a gate σ(↑(ReLU(norm(SepConv(x))))), where ↑ is
    (bi)linear to the size of x; then a SepConv for each later stage, the mean and a linear layer.
    After the last stage, and with ``linear`` after every stage: mean and linear layer.
    """

    def __init__(
        self, widths: Sequence[int], classes: int, kind: Kind, layers: Layers = IMAGES
    ) -> None:
        super().__init__()
        _, norm, self.interpolation = layers
        c, through = widths[0], widths if kind == "bottleneck" else widths[:1]
        self.gate: nn.Sequential | None = None
        if len(through) > 1:
            self.gate = nn.Sequential(separable(c, c, layers), norm(c), nn.ReLU())
        self.path = nn.Sequential(*(separable(a, b, layers) for a, b in pairwise(through)))
        self.head = nn.Linear(through[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the linear layer's inputs (n, d) for the stage's maps (n, c, ...)."""
        if self.gate is not None:
            gate, size, how = self.gate(x), x.shape[2:], self.interpolation
            x = x * torch.sigmoid(F.interpolate(gate, size, mode=how, align_corners=False))
        return pooled(self.path(x))


@final
class Exits(Classifier):
    """First ``depth`` stages of ``net``, each with an exit; the logits are the mean over exits.

    ``features`` and ``head`` belong to the deepest exit.
    """

    def __init__(self, net: Split, stages: Sequence[nn.Module], depth: int, kind: Kind) -> None:
        """Take the layers of ``net``; ``stages``: all its intermediate layers in order."""
        super().__init__()
        classes, norms = net.head.out_features, [_last_norm(stage) for stage in stages]
        widths = [norm.num_features for norm in norms]
        layers = IMAGES if isinstance(norms[0], nn.BatchNorm2d) else SIGNALS
        for name in (*(prefix.rstrip(".") for prefix in net.intermediate_prefixes), "head"):
            delattr(net, name)
        self.stem, self.stages = net, nn.ModuleList(stages[:depth])
        self.exits = nn.ModuleList(Exit(widths[i:], classes, kind, layers) for i in range(depth))
        he_convolutions(self.exits)

    def maps(self, x: Tensor) -> list[Tensor]:
        """Return the maps (n, c, ...) of every stage for samples (n, C, ...)."""
        x, maps = self.stem.extractor(x), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps

    def each(self, x: Tensor) -> list[Tensor]:
        """Return the logits (n, classes) of every exit for samples, the shallowest exit first."""
        return [exit_(maps) for exit_, maps in zip(self.exits, self.maps(x), strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(self.each(x)).mean(0)

    def leave(self, i: int) -> Exit:
        """Return exit ``i``, counted from 0; −1 is the deepest."""
        exit_ = self.exits[i]
        assert isinstance(exit_, Exit)
        return exit_

    def features(self, x: Tensor) -> Tensor:
        return self.leave(-1).features(self.maps(x)[-1])

    @property
    def head(self) -> nn.Linear:  # type: ignore[override]
        return self.leave(-1).head

    def within(self) -> dict[str, Classifier]:
        return {f"exit{i + 1}": SingleExit(self, i) for i in range(len(self.exits))}


@final
class SingleExit(Classifier):
    """Classifier that uses only exit ``i`` of a network."""

    def __init__(self, net: Exits, i: int) -> None:
        super().__init__()
        self.net, self.i, self.head = net, i, net.leave(i).head

    def features(self, x: Tensor) -> Tensor:
        return self.net.leave(self.i).features(self.net.maps(x)[self.i])


def _last_norm(stage: nn.Module) -> nn.BatchNorm1d | nn.BatchNorm2d:
    """Return the last BatchNorm of a stage, whose size is the stage's number of channels."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)
    return [module for module in stage.modules() if isinstance(module, kinds)][-1]
