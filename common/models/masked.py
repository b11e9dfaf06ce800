"""Networks limited to a client's classes, with logits for all classes (DL-MH, HeteroFL)."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from common.exchange.records import StateDict
from common.models.classifier import Classifier, Wrapper

NEVER = -1e9
"""Logit of a class that the client does not have."""


@final
class Masked(Wrapper):
    """Wrapper that maps ``net``'s outputs 0 … |d| − 1 to the logits of classes d."""

    def __init__(self, net: Classifier, d: Sequence[int], classes: int) -> None:
        super().__init__(net)
        self.classes = classes
        self.d: Tensor
        self.register_buffer("d", torch.tensor(d), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x)[:, : len(self.d)]
        full = z.new_full((len(z), self.classes), NEVER)
        logits: Tensor = full.index_copy(1, self.d.to(z.device), z)
        return logits


@final
class Zeroed(Wrapper):
    """Wrapper that sets the logits of all classes except d to 0, as in HeteroFL."""

    def __init__(self, net: Classifier, d: Sequence[int]) -> None:
        super().__init__(net)
        absent = torch.ones(net.head.out_features, dtype=torch.bool)
        absent[list(d)] = False
        self.absent: Tensor
        self.register_buffer("absent", absent, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits.masked_fill(self.absent.to(logits.device), 0.0)


def widened(own: StateDict, fresh: StateDict, d: Sequence[int]) -> StateDict:
    """Return ``own`` with the head of ``fresh``, where rows d come from ``own`` (I-DL-MH).

    Both have one architecture. The head of ``own`` has |d| rows (two, the second unused, if
    |d| = 1).
    """
    wide = dict(own)
    for name in ("head.weight", "head.bias"):
        rows = fresh[name].clone()
        rows[torch.tensor(d)] = own[name][: len(d)]
        wide[name] = rows
    return wide


def narrowed(wide: StateDict, d: Sequence[int]) -> StateDict:
    """Invert ``widened``: keep only rows d of the head, twice if |d| = 1."""
    rows = torch.tensor(d if len(d) > 1 else [d[0], d[0]])
    heads = {name: wide[name][rows] for name in ("head.weight", "head.bias")}
    return {**wide, **heads}


def beheaded(state: StateDict) -> StateDict:
    """Return a state dict without its head, for DL-SH's confidence network."""
    return {name: value for name, value in state.items() if not name.startswith("head.")}
