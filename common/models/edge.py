"""The two halves of a split network, as FedGKT trains them apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn

from common import seeds
from common.models.classifier import Classifier, Split, pooled


def splittable(net: Classifier) -> Split:
    """``net``, if it has an extractor; a one-line ``ValueError`` if not."""
    if not isinstance(net, Split):
        raise ValueError(f"model {net.spec!r} cannot be split into extractor and rest")
    return net


@final
class Edge(Classifier):
    """The extractor of ``net`` and a linear classifier on the means of its features."""

    def __init__(self, net: Split, classes: int, shape: tuple[int, int, int], seed: int) -> None:
        super().__init__()
        self.net, self.spec = net, net.spec
        with seeds.scope(seed, "init", "edge"):
            self.head = nn.Linear(feature_shape(net, shape)[0], classes)

    def features(self, x: Tensor) -> Tensor:
        return pooled(self.net.extractor(x))

    def trained(self) -> Iterator[nn.Parameter]:
        """Parameters of the extractor and of the small classifier."""
        for name, parameter in self.net.named_parameters():
            if self.net.part(name) == "extractor":
                yield parameter
        yield from self.head.parameters()


@torch.no_grad()
def feature_shape(net: Split, shape: tuple[int, int, int]) -> tuple[int, ...]:
    """(c, h, w) of the extractor's features of an image of ``shape``."""
    training = net.training
    net.eval()
    device = next(net.parameters()).device
    out = tuple(net.extractor(torch.zeros(1, *shape, device=device)).shape[1:])
    net.train(training)
    return out


def behind(net: Split, h: Tensor) -> Tensor:
    """f_s(H): features [n, c, h, w] to logits [n, C]."""
    return net.classifier(net.intermediate(h))


@final
class Whole(Classifier):
    """f_s(f_e(x)): the client's extractor before the server's half."""

    def __init__(self, edge: Edge, server: Classifier) -> None:
        super().__init__()
        self.edge, self.server = edge, splittable(server)

    def features(self, x: Tensor) -> Tensor:
        return self.edge.features(x)

    def forward(self, x: Tensor) -> Tensor:
        return behind(self.server, self.edge.net.extractor(x))
