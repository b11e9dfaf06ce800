"""Client drift: the share of the clients' updates that cancels in their mean.

    drift = 1 − m ‖Δ̄‖² / Σ_k ‖Δ_k‖²,    Δ_k = w_k − w,  Δ̄ = 1/m Σ_k Δ_k

over the parameters of the m clients of a round that train one architecture, with equal weights. It
is 0 for equal updates, 1 − 1/m for orthogonal ones, and 1 if the mean is zero. The fraction is the
inverse of the gradient diversity of Yin et al., "Gradient Diversity: a Key Ingredient for Scalable
Distributed Learning", AISTATS 2018, for local updates in place of gradients. With several
architectures, numerators and denominators are summed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from common import progress
from common.exchange.protocol import Reply, Request
from common.settings.config import MethodOptions
from server_app.callbacks import RunCallback
from server_app.method import Client, Method


@final
@dataclass
class _Group:
    """Sums over the clients of one architecture."""

    clients: int = 0
    total: list[Tensor] = field(default_factory=list)  #: Σ Δ_k, one float64 tensor per piece
    squares: float = 0.0  #: Σ ‖Δ_k‖²


def measure(
    method: Method[MethodOptions, Reply],
    sent: Mapping[int, Request],
    good: Sequence[tuple[Client, Reply]],
) -> float | None:
    """Return the drift of a round's replies, in [0, 1].

    None if no two clients of one architecture changed their weights. ``sent``: requests by client.
    """
    groups: dict[str, _Group] = {}
    for client, reply in progress.steps(good, "drift"):
        named = [(name, step.double()) for name, step in method.change(sent[client.k], reply)]
        if not named:
            continue
        shapes = str([(name, step.shape) for name, step in named])
        group, moved = groups.setdefault(shapes, _Group()), [step for _, step in named]
        group.clients += 1
        group.squares += sum(float(step.square().sum()) for step in moved)
        totals = group.total or [torch.zeros_like(step) for step in moved]
        group.total = [total.add_(step) for total, step in zip(totals, moved, strict=True)]
    apart = squares = 0.0
    for group in groups.values():
        if group.clients > 1:
            together = sum(float(total.square().sum()) for total in group.total)
            apart += group.squares - together / group.clients
            squares += group.squares
    return max(apart, 0.0) / squares if squares > 0 else None


@final
class Drift(RunCallback):
    """Measurement of the drift in every round (``score.drift``)."""

    def after_replies(self) -> None:
        """Write the drift of the valid replies to the entry."""
        run = self.run
        if run.config.score.drift:
            run.entry.drift = measure(run.method, run.method.sent, run.good)
