"""The common split of a fleet: one shape of s_in and one of s_out (FedIN, section 4)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import torch

from common import models
from common.models.classifier import Split


class Shapes(NamedTuple):
    """Of one sample's feature input (c, h, w) and feature output (c', h', w')."""

    s_in: tuple[int, ...]
    s_out: tuple[int, ...]


@lru_cache(maxsize=64)
def shapes(spec: str, shape: tuple[int, int, int], classes: int, *, stem: str = "auto") -> Shapes:
    """What an architecture's extractor and intermediate layers put out; nothing is computed.

    Raises ``ValueError``, one line, for an architecture without intermediate layers of its own.
    """
    with torch.device("meta"):
        net = models.build(spec, shape, classes, seed=0, stem=stem).eval()
        if not isinstance(net, Split):
            raise ValueError(
                f"model {spec!r} has no split into extractor, intermediate layers and classifier"
            )
        with torch.no_grad():
            s_in = net.extractor(torch.empty(1, *shape))
            return Shapes(tuple(s_in.shape[1:]), tuple(net.intermediate(s_in).shape[1:]))


def common_shapes(
    specs: Iterable[str], shape: tuple[int, int, int], classes: int, *, stem: str = "auto"
) -> Shapes:
    """The one pair of shapes of all ``specs``, of which there is at least one.

    Raises ``ValueError``, one line, naming two architectures that differ.
    """
    distinct = list(dict.fromkeys(specs))
    found = {spec: shapes(spec, shape, classes, stem=stem) for spec in distinct}
    first = distinct[0]
    for spec, theirs in found.items():
        if theirs != found[first]:
            raise ValueError(
                f"no common split: s_in and s_out are {_text(found[first])} in {first}, "
                f"{_text(theirs)} in {spec}"
            )
    return found[first]


def _text(shapes: Shapes) -> str:
    return " and ".join("×".join(map(str, shape)) for shape in shapes)
