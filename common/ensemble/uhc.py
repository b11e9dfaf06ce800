"""UHC: one distribution over all classes from classifiers of different class sets.

Vongkulbhisal et al., "Unifying Heterogeneous Classifiers with Distillation", CVPR 2019. Client i's
posterior over its classes L_i relates to the whole q by p_i(l) = q(l) / Σ_{k∈L_i} q(k); q is
estimated for each sample. Predictions p are [M, N, C], zero where a client has no class; ``held``
[M, C] says which classes it has; at least one client holds each class of the result's support.

Where no two clients share a class, nothing tells how the mass divides between them: cross-entropy
then keeps what its start and its steps give, the factorisation gives each client the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-12


def by_cross_entropy(p: Tensor, held: Tensor, steps: int, lr: float) -> Tensor:
    """q = softmax(u) after ``steps`` gradient steps from u = 0 on

        −Σ_i Σ_{l∈L_i} p_i(l) (u_l − log Σ_{k∈L_i} exp u_k)          (section 3.3.1)

    of size ``lr`` over the largest number of clients that share a class. Classes that nobody holds
    get nothing. Returns [N, C].
    """
    outside = ~held[:, None, :]
    u = torch.zeros_like(p[0])
    size = lr / max(int(held.sum(0).max()), 1)
    for _ in range(steps):
        own = torch.softmax(u.masked_fill(outside, -torch.inf), dim=2)
        u = u - size * (own - p).sum(0)
    return torch.softmax(u.masked_fill(~held.any(0), -torch.inf), dim=1)


def by_factorisation(p: Tensor, held: Tensor, steps: int) -> Tensor:
    """q ∝ v where p_i(l) ≈ u_i v_l on the entries held: ``steps`` of alternating least squares.

    Section 3.3.2, in probability space, from v = 1. Returns [N, C].
    """
    mask = held[:, None, :].to(p.dtype)
    v = torch.ones_like(p[0])
    for _ in range(steps):
        u = (p * v).sum(2) / (mask * v.square()).sum(2).clamp_min(TINY)
        v = (p * u[:, :, None]).sum(0) / (mask * u.square()[:, :, None]).sum(0).clamp_min(TINY)
    return v / v.sum(1, keepdim=True).clamp_min(TINY)
