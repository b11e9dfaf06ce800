"""What is added to gradient descent: staying near a reference, and gradients that are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn


def alleviated(g_in: Sequence[Tensor], g_local: Sequence[Tensor]) -> list[Tensor]:
    """Z of equation 13: the nearest to G_IN of all Z with ⟨Z, G_local⟩ ≥ 0 (equation 10).

        Z = G_IN  if b ≥ 0,  else  G_IN − (b/a) G_local,    a = ‖G_local‖², b = ⟨G_local, G_IN⟩

    Both gradients are taken as one vector each; ``g_in`` and ``g_local`` hold it tensor by tensor,
    of equal shapes. a = 0 leaves G_IN as it is.
    """
    a = torch.stack([g.square().sum() for g in g_local]).sum()
    b = torch.stack([(g * h).sum() for g, h in zip(g_local, g_in, strict=True)]).sum()
    factor = torch.where((b < 0) & (a > 0), -b / a, torch.zeros_like(b))
    return [g + factor * h for g, h in zip(g_in, g_local, strict=True)]


def with_gradient(value: Tensor, gradient: Sequence[Tensor], at: Sequence[Tensor]) -> Tensor:
    """A scalar of the value of ``value`` whose gradient with respect to ``at`` is ``gradient``.

    It is the linear term ⟨gradient, at⟩, shifted by a constant.
    """
    linear = torch.stack([(g * w).sum() for g, w in zip(gradient, at, strict=True)]).sum()
    return linear - linear.detach() + value.detach()


def proximal(named: Iterable[tuple[str, Tensor]], reference: Mapping[str, Tensor]) -> Tensor:
    """½ ‖w − w_ref‖² over the parameters given, never over buffers.

    ``named``: ``module.named_parameters()``; ``reference``: tensors of the same names and shapes.
    Li et al. 2020 (FedProx), eq. 2 without μ.
    """
    return 0.5 * torch.stack([(p - reference[name]).square().sum() for name, p in named]).sum()


def held_near(net: nn.Module) -> Callable[[], Tensor]:
    """``proximal`` of ``net``'s parameters, whatever they become, to those that it has now."""
    named = list(net.named_parameters())
    reference = {name: value.detach().clone() for name, value in named}
    return lambda: proximal(named, reference)
