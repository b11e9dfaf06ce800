"""How far clients train apart: the share of their movement that cancels in its mean.

    drift = 1 − m ‖Δ̄‖² / Σ_k ‖Δ_k‖²,    Δ_k = w_k − w,  Δ̄ = 1/m Σ_k Δ_k

over the parameters of the m clients of a round that train one architecture, all counted alike. It
is 0 where all move alike, 1 − 1/m where they move at right angles, and 1 where nothing is left. The
fraction is the gradient diversity of Yin et al., "Gradient Diversity: a Key Ingredient for Scalable
Distributed Learning", AISTATS 2018, upside down, of whole local updates. Of several architectures
the sums of numerators and denominators are taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from common.exchange.protocol import Reply, Request
from common.settings.config import MethodOptions
from server_app.method import Client, Method


@final
@dataclass
class _Group:
    """Clients of one architecture."""

    clients: int = 0
    total: list[Tensor] = field(default_factory=list)  #: Σ Δ_k, float64, a tensor each
    squares: float = 0.0  #: Σ ‖Δ_k‖²


def measure(
    method: Method[MethodOptions, Reply],
    sent: Mapping[int, Request],
    good: Sequence[tuple[Client, Reply]],
) -> float | None:
    """The drift of a round's replies, in [0, 1]; None where no two clients of one architecture
    sent weights that moved. ``sent``: what they were sent, by client.
    """
    groups: dict[str, _Group] = {}
    for client, reply in good:
        named = [(name, step.double()) for name, step in method.change(sent[client.k], reply)]
        if not named:
            continue
        shapes = str([(name, step.shape) for name, step in named])
        group, moved = groups.setdefault(shapes, _Group()), [step for _, step in named]
        group.clients += 1
        group.squares += sum(float(step.square().sum()) for step in moved)
        totals = group.total or [torch.zeros_like(step) for step in moved]
        group.total = [total.add_(step) for total, step in zip(totals, moved, strict=True)]
    apart = moved_in_all = 0.0
    for group in groups.values():
        if group.clients > 1:
            together = sum(float(total.square().sum()) for total in group.total)
            apart += group.squares - together / group.clients
            moved_in_all += group.squares
    return max(apart, 0.0) / moved_in_all if moved_in_all > 0 else None
