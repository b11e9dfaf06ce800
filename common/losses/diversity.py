"""Keeping a generator from answering different noise alike."""

from __future__ import annotations

from torch import Tensor


def diversity(z: Tensor, features: Tensor) -> Tensor:
    """exp(−mean_ij d(z_i, z_j) · d(f_i, f_j)), in (0, 1]: 1 if all outputs are equal.

    ``z`` [n, m], ``features`` [n, d]; distances are means over entries, squared for the noise and
    absolute for the features (FedGen, the released code).
    """
    noise = (z[:, None] - z[None]).square().mean(2)
    layer = (features[:, None] - features[None]).abs().mean(2)
    return (-(noise * layer).mean()).exp()
