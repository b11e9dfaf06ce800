"""Split networks: FedGKT's two halves of a network, and FedIN's common split of architectures."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from common import models, seeds
from common.models.classifier import Classifier, Split, pooled
from common.models.layers import Shape
from common.models.shapes import without_values


def splittable(net: Classifier) -> Split:
    """Return ``net`` if it has an extractor; raise a one-line ``ValueError`` if not."""
    if not isinstance(net, Split):
        parts = "extractor, intermediate layers and classifier"
        raise ValueError(f"model {net.spec!r} cannot be split into {parts}")
    return net


@final
class Edge(Classifier):
    """Classifier with the extractor of ``net`` and a linear head on the mean feature maps."""

    def __init__(self, net: Split, classes: int, shape: Shape, seed: int) -> None:
        super().__init__()
        self.net, self.spec = net, net.spec
        with seeds.scope(seed, "init", "edge"):
            self.head = nn.Linear(feature_shape(net, shape)[0], classes)

    def features(self, x: Tensor) -> Tensor:
        return pooled(self.net.extractor(x))

    def trained(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the extractor and the head."""
        for name, parameter in self.net.named_parameters():
            if self.net.part(name) == "extractor":
                yield parameter
        yield from self.head.parameters()


@torch.no_grad()
def feature_shape(net: Split, shape: Shape) -> tuple[int, ...]:
    """Return the shape (c, h, w) of the extractor's features for an image of ``shape``."""
    training = net.training
    net.eval()
    device = next(net.parameters()).device
    out = tuple(net.extractor(torch.zeros(1, *shape, device=device)).shape[1:])
    net.train(training)
    return out


def behind(net: Split, h: Tensor) -> Tensor:
    """Return f_s(H), the logits [n, C] of the server's half for features H [n, c, h, w]."""
    return net.classifier(net.intermediate(h))


@final
class EdgeServerModel(Classifier):
    """Classifier f_s(f_e(x)): the client's extractor followed by the server's half."""

    def __init__(self, edge: Edge, server: Classifier) -> None:
        super().__init__()
        self.edge, self.server = edge, splittable(server)

    def features(self, x: Tensor) -> Tensor:
        return self.edge.features(x)

    def forward(self, x: Tensor) -> Tensor:
        return behind(self.server, self.edge.net.extractor(x))


class Shapes(NamedTuple):
    """Shapes of one sample's feature input (c, h, w) and feature output (c', h', w')."""

    s_in: tuple[int, ...]
    s_out: tuple[int, ...]


@lru_cache(maxsize=64)
def shapes(spec: str, shape: Shape, classes: int, *, stem: str = "auto") -> Shapes:
    """Return the output shapes of an architecture's extractor and intermediate layers.

    Runs on the meta device. Raises ``ValueError``, one line, for an architecture without
    intermediate layers.
    """
    with without_values():
        net = splittable(models.build(spec, shape, classes, stem, seed=0)).eval()
        with torch.no_grad():
            s_in = net.extractor(torch.empty(1, *shape))
            return Shapes(tuple(s_in.shape[1:]), tuple(net.intermediate(s_in).shape[1:]))


def common_shapes(
    specs: Iterable[str], shape: Shape, classes: int, *, stem: str = "auto"
) -> Shapes:
    """Return the common pair of shapes of ``specs`` (at least one).

    Raises ``ValueError``, one line, that names two architectures with different shapes.
    """
    distinct = list(dict.fromkeys(specs))
    shapes_of = {spec: shapes(spec, shape, classes, stem=stem) for spec in distinct}
    first = distinct[0]
    for spec, other in shapes_of.items():
        if other != shapes_of[first]:
            raise ValueError(
                f"no common split: s_in and s_out are {_text(shapes_of[first])} in {first}, "
                f"{_text(other)} in {spec}"
            )
    return shapes_of[first]


def _text(shapes: Shapes) -> str:
    return " and ".join("×".join(map(str, shape)) for shape in shapes)


def inner_and_outer(net: Split) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters of w_in, and the parameters of extractor and classifier."""
    named = list(net.named_parameters())
    inner = [w for name, w in named if net.part(name) == "intermediate"]
    return inner, [w for name, w in named if net.part(name) != "intermediate"]
