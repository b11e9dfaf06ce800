"""CKA: how alike two networks see the same images (Kornblith et al. 2019, section 3)."""

from collections.abc import Sequence

import torch
from torch import Tensor


def centred_gram(x: Tensor) -> Tensor:
    """The Gram matrix [n, n] of features x [n, ...] whose mean over the n samples is taken off.

    Raises ``ValueError`` for fewer than two samples.
    """
    if len(x) < 2:
        raise ValueError(f"CKA of {len(x)} samples: it takes 2 or more")
    flat = x.flatten(1).to(torch.float64)
    flat = flat - flat.mean(0)
    return flat @ flat.T


def alignment(k: Tensor, l: Tensor) -> float:  # noqa: E741 - the paper's letters
    """CKA of two centred Gram matrices [n, n], in [0, 1]; 0 if one is all zeros.

    ⟨K, L⟩ / (‖K‖ ‖L‖): the paper's HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)), equations 3 and 4. For
    features X and Y it is ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) with centred columns: 1 if Y is X rotated,
    reflected, shifted or scaled; their dimensions may differ.
    """
    scale = float(k.norm() * l.norm())
    return min(max(float((k * l).sum()) / scale, 0.0), 1.0) if scale > 0 else 0.0


def pairwise(grams: Sequence[Tensor]) -> Tensor:
    """Linear CKA of every pair of networks [m, m], from their centred Gram matrices [n, n]."""
    return torch.tensor([[alignment(k, l) for l in grams] for k in grams], dtype=torch.float64)  # noqa: E741
