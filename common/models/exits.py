"""Networks with a classifier after each stage, cut to a depth (DepthFL).

Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients", ICLR 2023; layers as
in the first author's code for Flower. The network of depth d has the stem, stages and exits 1 … d
of the whole, under the same names, so that it is a part of every deeper one.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models.classifier import Classifier, Split, pooled
from common.models.layers import he_convolutions

Kind = Literal["bottleneck", "linear"]


def separable(inputs: int, outputs: int) -> nn.Sequential:
    """SepConv: two depthwise-separable convolutions, the first of stride 2, norms and ReLUs."""
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, 2, 1, groups=inputs, bias=False),
        nn.Conv2d(inputs, inputs, 1, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU(),
        nn.Conv2d(inputs, inputs, 3, 1, 1, groups=inputs, bias=False),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


@final
class Exit(Classifier):
    """The classifier after a stage. ``widths``: channels of this stage and of those after it.

    ``bottleneck``: the stage's maps x times a gate, σ(↑(ReLU(norm(SepConv(x))))), ↑ bilinear to the
    size of x; a SepConv in place of each stage that is missing; their mean; a linear layer. After
    the last stage, and with ``linear`` after each: mean and linear layer.
    """

    def __init__(self, widths: Sequence[int], classes: int, kind: Kind) -> None:
        super().__init__()
        c, through = widths[0], widths if kind == "bottleneck" else widths[:1]
        self.gate: nn.Sequential | None = None
        if len(through) > 1:
            self.gate = nn.Sequential(separable(c, c), nn.BatchNorm2d(c), nn.ReLU())
        self.path = nn.Sequential(*(separable(a, b) for a, b in pairwise(through)))
        self.head = nn.Linear(through[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        """The stage's maps (n, c, h, w) to what the linear layer reads (n, d)."""
        if self.gate is not None:
            gate = F.interpolate(self.gate(x), x.shape[-2:], mode="bilinear", align_corners=False)
            x = x * torch.sigmoid(gate)
        return pooled(self.path(x))


@final
class Exits(Classifier):
    """``net``'s first ``depth`` stages, each with an exit; the logits are the mean of the exits'.

    ``features`` and ``head`` are the deepest exit's.
    """

    def __init__(self, net: Split, stages: Sequence[nn.Module], depth: int, kind: Kind) -> None:
        """``net`` is taken apart; ``stages``: all of its intermediate layers, in order."""
        super().__init__()
        classes, widths = net.head.out_features, [_channels(stage) for stage in stages]
        for name in (*(prefix.rstrip(".") for prefix in net.intermediate_prefixes), "head"):
            delattr(net, name)
        self.stem, self.stages = net, nn.ModuleList(stages[:depth])
        self.exits = nn.ModuleList(Exit(widths[i:], classes, kind) for i in range(depth))
        he_convolutions(self.exits)

    def maps(self, x: Tensor) -> list[Tensor]:
        """Images (n, C, H, W) to the maps (n, c, h, w) of every stage."""
        x, found = self.stem.extractor(x), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found

    def each(self, x: Tensor) -> list[Tensor]:
        """Images (n, C, H, W) to the logits (n, classes) of every exit, the shallowest first."""
        return [leave(maps) for leave, maps in zip(self.exits, self.maps(x), strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(self.each(x)).mean(0)

    def leave(self, i: int) -> Exit:
        """Exit ``i``, counted from 0; −1: the deepest."""
        found = self.exits[i]
        assert isinstance(found, Exit)
        return found

    def features(self, x: Tensor) -> Tensor:
        return self.leave(-1).features(self.maps(x)[-1])

    @property
    def head(self) -> nn.Linear:  # type: ignore[override]
        return self.leave(-1).head

    def within(self) -> dict[str, Classifier]:
        return {f"exit{i + 1}": SingleExit(self, i) for i in range(len(self.exits))}


@final
class SingleExit(Classifier):
    """What exit ``i`` of a network says alone."""

    def __init__(self, net: Exits, i: int) -> None:
        super().__init__()
        self.net, self.i, self.head = net, i, net.leave(i).head

    def features(self, x: Tensor) -> Tensor:
        return self.net.leave(self.i).features(self.net.maps(x)[self.i])


def _channels(stage: nn.Module) -> int:
    """Return the number of channels of a stage's output, which its last BatchNorm has."""
    return [m.num_features for m in stage.modules() if isinstance(m, nn.BatchNorm2d)][-1]
