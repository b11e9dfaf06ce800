"""CKA: similarity of two networks' features of the same images (Kornblith 2019, section 3)."""

from collections.abc import Sequence

import torch
from torch import Tensor


def centred_gram(x: Tensor) -> Tensor:
    """Return the Gram matrix [n, n] of features x [n, ...] after subtraction of their mean.

    Raises ``ValueError`` for fewer than two samples.
    """
    if len(x) < 2:
        raise ValueError(f"CKA of {len(x)} samples: it needs 2 or more")
    rows = x.flatten(1).to(torch.float64)
    rows = rows - rows.mean(0)
    return rows @ rows.T


def alignment(k: Tensor, l: Tensor) -> float:  # noqa: E741 - the paper's letters
    """Return the CKA of two centred Gram matrices [n, n], in [0, 1]; 0 if one is all zeros.

    ⟨K, L⟩ / (‖K‖ ‖L‖): the paper's HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)), equations 3 and 4. For
    features X and Y it is ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) with centred columns. It is 1 if Y is X rotated,
    reflected, shifted or scaled. The dimensions of X and Y may differ.
    """
    scale = float(k.norm() * l.norm())
    return min(max(float((k * l).sum()) / scale, 0.0), 1.0) if scale > 0 else 0.0


def pairwise(grams: Sequence[Tensor]) -> Tensor:
    """Return the linear CKA of all pairs of networks [m, m] from centred Gram matrices [n, n]."""
    return torch.tensor([[alignment(k, l) for l in grams] for k in grams], dtype=torch.float64)  # noqa: E741
