"""Staying near a reference point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn


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
