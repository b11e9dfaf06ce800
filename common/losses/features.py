"""Learning from features: IN training and the gradients that go with it (FedIN, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
