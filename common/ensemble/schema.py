"""Schemas: which global class each output of a client's own head stands for (DL-MH, Figure 4).

A schema d is a list of |d| global classes, all different; the client's output j is class d[j].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def check_schema(d: Sequence[int], C: int) -> None:
    """Raise a one-line ``ValueError`` for a schema that is empty, repeats a class or knows others.

    C: classes of the task, 0 … C − 1.
    """
    if not d:
        raise ValueError("the schema names no class")
    if unknown := [c for c in d if not 0 <= c < C]:
        raise ValueError(f"the schema has class {unknown[0]}; there are 0 to {C - 1}")
    if repeated := sorted(c for c, times in Counter(d).items() if times > 1):
        raise ValueError(f"the schema has class {repeated[0]} more than once")


def to_local(y: Tensor, d: Sequence[int]) -> Tensor:
    """Global labels y [n], all of them in d, as indices into d (Algorithm 3, lines 2-11)."""
    index = torch.full((max(d) + 1,), -1, dtype=torch.int64, device=y.device)
    index[torch.tensor(d, device=y.device)] = torch.arange(len(d), device=y.device)
    local = index[y]
    assert bool((local >= 0).all()), "a label that the schema does not have"
    return local


def scatter(theta: Tensor, d: Sequence[int], C: int) -> Tensor:
    """Predictions [N, |d|] as [N, C], zeros where the client has no class (Algorithm 4, 2-9)."""
    full = theta.new_zeros(len(theta), C)
    full[:, torch.tensor(d, device=theta.device)] = theta
    return full


def nearest_class(theta: Tensor, d: Sequence[int]) -> Tensor:
    """The client's best class for each sample, as an index into d: int64 [N] (Algorithm 5, 9-22).

    ``theta`` [N, C]: the server's predictions. Of equal classes the first in d. The algorithm
    starts from θ[k][0], the prediction for class 0; what it means is d[0], the client's first.
    """
    columns = theta[:, torch.tensor(d, device=theta.device)].cpu().numpy()
    return torch.from_numpy(np.argmax(columns, axis=1))
