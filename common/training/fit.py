"""The one training loop, for local models, mutual pairs, generators and noise images.

Methods differ in their losses, never in the loop. A correction of the gradient is a term of the
loss: g + a is the gradient of the loss plus ⟨a, w⟩.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from common import progress
from common.errors import at

Loss = Callable[..., Tensor]
Precision = Literal["fp32", "bf16"]


def forward(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the context for forward passes in training: autocast to bfloat16, or none.

    ``fit`` computes its losses in this context. Code that calls a network between two steps enters
    the context itself and leaves it before the weights change, because autocast caches the weights
    in bfloat16 until the context ends.
    """
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def fit(
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, ...]],
    loss: Loss,
    *,
    precision: Precision,
    clip: float = 0.0,
) -> dict[str, float]:
    """Take one optimiser step on the scalar ``loss(*batch)`` for each batch.

    ``clip``: largest gradient norm of each of the optimiser's groups of parameters; 0: no clipping.
    ``precision``: dtype in which ``loss`` is computed, on the device of its first argument; weights
    and optimiser stay float32.

    Returns the mean ``loss`` over the steps and the number of ``steps``.

    Raises ``ValueError`` if there is no batch, and ``FloatingPointError`` if the mean loss is not
    finite.
    """
    total, steps = None, 0
    for batch in progress.steps(batches, "step"):
        optimizer.zero_grad(set_to_none=True)
        with forward(precision, batch[0].device):
            value = loss(*batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"shape {tuple(value.shape)}" if torch.is_tensor(value) else type(value).__name__
            raise TypeError(f"a loss gives {got}; it should be a scalar tensor{at(loss)}")
        value.backward()
        for group in optimizer.param_groups if clip else ():
            nn.utils.clip_grad_norm_(group["params"], clip)
        optimizer.step()
        step_loss = value.detach().double()
        total = step_loss if total is None else total + step_loss
        steps += 1
    optimizer.zero_grad(set_to_none=True)
    if total is None:
        raise ValueError("no batch to train on: the set is empty or a lone sample was skipped")
    mean = float(total) / steps
    if not torch.isfinite(torch.tensor(mean)):
        raise FloatingPointError(f"training diverged: mean loss {mean} over {steps} steps")
    return {"loss": mean, "steps": float(steps)}
