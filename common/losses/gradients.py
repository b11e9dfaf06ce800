"""Proximal terms, losses with a prescribed gradient, and comparisons of two gradients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import final

import torch
from torch import Tensor, nn


def alleviated(g_in: Sequence[Tensor], g_local: Sequence[Tensor]) -> list[Tensor]:
    """Return Z of FedIN's equation 13, the Z nearest to G_IN with ⟨Z, G_local⟩ ≥ 0 (equation 10).

        Z = G_IN  if b ≥ 0,  else  G_IN − (b/a) G_local,    a = ‖G_local‖², b = ⟨G_local, G_IN⟩

    Each gradient is one vector; ``g_in`` and ``g_local`` hold its parts as tensors of equal shapes.
    For a = 0, Z is G_IN.
    """
    a = torch.stack([g.square().sum() for g in g_local]).sum()
    b = torch.stack([(g * h).sum() for g, h in zip(g_local, g_in, strict=True)]).sum()
    factor = torch.where((b < 0) & (a > 0), -b / a, torch.zeros_like(b))
    return [g + factor * h for g, h in zip(g_in, g_local, strict=True)]


@final
class Divergence:
    """Comparison of two gradients of the same weights at regular steps.

    ``every``: steps from one comparison to the next, starting at the first step; 0: never.
    """

    def __init__(self, every: int) -> None:
        self.every, self.steps = every, 0
        self.seen: list[tuple[float, float]] = []

    def compare(self, first: Tensor, second: Tensor, at: Sequence[nn.Parameter]) -> None:
        """Record cosine and norm ratio of the gradients if this step is due; keep the graphs."""
        due = self.every > 0 and self.steps % self.every == 0
        self.steps += 1
        if not due:
            return
        g, h = (
            torch.cat([x.flatten() for x in torch.autograd.grad(loss, at, retain_graph=True)])
            for loss in (first, second)
        )
        a, b = float(g.norm()), float(h.norm())
        if a > 0 and b > 0:
            self.seen.append((float(g.double() @ h.double()) / (a * b), b / a))

    @property
    def metrics(self) -> dict[str, float]:
        """Share of compared steps with opposed gradients (``conflict``), means of ``cosine`` and
        ``norm_ratio``, which is ‖second‖/‖first‖. Empty without a compared step."""
        if not self.seen:
            return {}
        cosines, ratios = zip(*self.seen, strict=True)
        return {
            "conflict": sum(cosine < 0 for cosine in cosines) / len(cosines),
            "cosine": fmean(cosines),
            "norm_ratio": fmean(ratios),
        }


def slope(gradient: Sequence[Tensor], at: Sequence[Tensor]) -> Tensor:
    """Return a scalar of value 0 whose gradient at ``at`` is ``gradient``."""
    linear = torch.stack([(g * w).sum() for g, w in zip(gradient, at, strict=True)]).sum()
    return linear - linear.detach()


def opposed(
    both: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    inner: list[nn.Parameter],
    outer: list[nn.Parameter],
    outer_scale: float,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a loss with gradient Z of eq. 13 at ``inner``, ``outer_scale`` G_local at ``outer``.

    ``both`` returns the losses l_local and l_IN of a batch; l_IN must not depend on ``outer``. The
    value of the loss is l_local. FedIN, section IV-B.
    """

    def loss(x: Tensor, y: Tensor) -> Tensor:
        l_local, l_in = both(x, y)
        g_local = torch.autograd.grad(l_local, [*inner, *outer])
        g_in = torch.autograd.grad(l_in, inner)
        z = alleviated(g_in, g_local[: len(inner)])
        scaled = [outer_scale * g for g in g_local[len(inner) :]]
        return slope([*z, *scaled], [*inner, *outer]) + l_local.detach()

    return loss


def proximal(named: Iterable[tuple[str, Tensor]], reference: Mapping[str, Tensor]) -> Tensor:
    """Return ½ ‖w − w_ref‖² over the named parameters, without buffers.

    ``named``: ``module.named_parameters()``; ``reference``: tensors of the same names and shapes.
    Li et al. 2020 (FedProx), eq. 2 without μ.
    """
    return 0.5 * torch.stack([(p - reference[name]).square().sum() for name, p in named]).sum()


def held_near(net: nn.Module) -> Callable[[], Tensor]:
    """Return a function that computes ``proximal`` of ``net`` to its current parameters."""
    named = list(net.named_parameters())
    reference = {name: value.detach().clone() for name, value in named}
    return lambda: proximal(named, reference)
