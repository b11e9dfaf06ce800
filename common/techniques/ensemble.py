"""Ensembles of several clients' predictions on the same public images.

DL-SH weights predictions sample by sample with the clients' confidences, for example ODIN scores.
Shapes: M clients, N public samples, C classes. Sums run in the order of the clients.

In DL-MH, clients' heads differ. A schema d (Figure 4) maps a client's outputs to global classes: a
list of |d| different global classes; output j is class d[j].

UHC makes one distribution over all classes from classifiers of different class sets (Vongkulbhisal
et al., "Unifying Heterogeneous Classifiers with Distillation", CVPR 2019). Client i's posterior
over its classes L_i relates to the whole q by p_i(l) = q(l) / Σ_{k∈L_i} q(k); q is estimated for
each sample. Predictions p are [M, N, C], zero where a client lacks a class. ``classes_of`` [M, C],
bool, marks the classes of each client; the result is zero for classes of no client. Where no two
clients share a class, the division of the mass between them is undetermined: cross-entropy keeps
the result of its start and its steps, the factorisation gives each client the same mass.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import progress
from common.data.kinds import per_channel

EDGE = 1 / 510
"""Least distance of a confidence from 0 and 1 before its logit: half a step of 8 bits."""
TINY = 1e-12
"""Smallest divisor in UHC's factorisation."""


def client_weights(w: Tensor, T: float, space: str = "prob") -> Tensor:
    """Return W_i(x) = exp(w_i(x)/T) / Σ_j exp(w_j(x)/T), a softmax over clients (DL-SH, eq. 4).

    ``w`` [M, N]: probability in [0, 1] that a sample resembles the client's data; T > 0.
    ``space = "logit"`` uses the unbounded logit of w. Returns [M, N], columns summing to 1.
    """
    if space == "logit":
        w = torch.logit(w, eps=EDGE)
    return torch.softmax(w / T, dim=0)


def weighted_sum(predictions: Sequence[Tensor], W: Tensor) -> Tensor:
    """Return Σ_i W_i(x) M_i(x); predictions M_i are [N, C], W is [M, N] (DL-SH, eq. 1)."""
    assert len(predictions) == len(W)
    total = torch.zeros_like(predictions[0])
    for theta, weights in zip(predictions, W, strict=True):
        total = total + weights[:, None] * theta
    return total


def literal_product(predictions: Sequence[Tensor], W: Tensor) -> Tensor:
    """Return the mean prediction times the mean weight (DL-SH, Algorithm 2, lines 4-6).

    Σ_i W_i = 1, so the weights come to the constant 1/M: the confidences have no effect.
    """
    return torch.stack(list(predictions)).mean(0) * W.mean(0)[:, None]


def odin_score(
    net: nn.Module, x: Tensor, *, T: float, epsilon: float, std: Sequence[float]
) -> Tensor:
    """Return max softmax(f(x')/T), x' = x − ε sign(−∇_x log max softmax(f(x)/T)); [n] in (0, 1].

    ``x``: normalised samples [n, C, ...]; ``std``: the standard deviations of that normalisation,
    so that ε is in units of the data (of pixels in [0, 1] for bytes). The network is in evaluation
    mode; its parameters and gradients do not change. Liang et al., "Enhancing the Reliability of
    Out-of-distribution Image Detection in Neural Networks", ICLR 2018, equations 1 to 3; the paper
    has T = 1000, ε = 0.0014.
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = net(x) / T
        loss = F.cross_entropy(logits, logits.argmax(1), reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x)
    scale = per_channel(std, x)
    with torch.no_grad():
        moved = x - epsilon * gradient.sign() / scale
        return torch.softmax(net(moved) / T, dim=1).amax(1)


def rescaled(scores: Tensor) -> Tensor:
    """Return scores [N] rescaled to [0, 1]; all 0.5 if they are equal.

    With T = 1000 all scores lie within a thousandth of 1/C, so a softmax over clients would hardly
    depend on them.
    """
    low, high = scores.min(), scores.max()
    if not bool(high > low):
        return torch.full_like(scores, 0.5)
    return (scores - low) / (high - low)


def check_schema(d: Sequence[int], C: int) -> None:
    """Raise a one-line ``ValueError`` for an empty schema, or a repeated or unknown class.

    C: number of classes of the task, 0 … C − 1.
    """
    if not d:
        raise ValueError("the schema names no class")
    if unknown := [c for c in d if not 0 <= c < C]:
        raise ValueError(f"the schema has class {unknown[0]}; there are 0 to {C - 1}")
    if repeated := sorted(c for c, times in Counter(d).items() if times > 1):
        raise ValueError(f"the schema has class {repeated[0]} more than once")


def to_local(y: Tensor, d: Sequence[int]) -> Tensor:
    """Return the indices in d of global labels y [n], all in d (Algorithm 3, lines 2-11)."""
    index = torch.full((max(d) + 1,), -1, dtype=torch.int64, device=y.device)
    index[torch.tensor(d, device=y.device)] = torch.arange(len(d), device=y.device)
    local = index[y]
    assert bool((local >= 0).all()), "the schema lacks a label"
    return local


def scatter(theta: Tensor, d: Sequence[int], C: int) -> Tensor:
    """Return predictions [N, |d|] as [N, C], zero for classes not in d (Algorithm 4, 2-9)."""
    full = theta.new_zeros(len(theta), C)
    full[:, torch.tensor(d, device=theta.device)] = theta
    return full


def nearest_class(theta: Tensor, d: Sequence[int]) -> Tensor:
    """Return each sample's best class in d, as an index into d: int64 [N] (Algorithm 5, 9-22).

    ``theta`` [N, C]: the server's predictions. Of equal classes the first in d counts. The paper's
    algorithm starts from θ[k][0], class 0; we take it to mean d[0], the client's first class.
    """
    columns = theta[:, torch.tensor(d, device=theta.device)].cpu().numpy()
    return torch.from_numpy(np.argmax(columns, axis=1))


def by_cross_entropy(p: Tensor, classes_of: Tensor, steps: int, lr: float) -> Tensor:
    """Return q = softmax(u) [N, C] after ``steps`` gradient steps from u = 0 on

        −Σ_i Σ_{l∈L_i} p_i(l) (u_l − log Σ_{k∈L_i} exp u_k)          (section 3.3.1)

    of size ``lr`` over the largest number of clients that share a class. Classes of no client get
    probability 0.
    """
    outside = ~classes_of[:, None, :]
    u = torch.zeros_like(p[0])
    size = lr / max(int(classes_of.sum(0).max()), 1)
    for _ in progress.steps(range(steps), "step"):
        q = torch.softmax(u.masked_fill(outside, -torch.inf), dim=2)
        u = u - size * (q - p).sum(0)
    return torch.softmax(u.masked_fill(~classes_of.any(0), -torch.inf), dim=1)


def by_factorisation(p: Tensor, classes_of: Tensor, steps: int) -> Tensor:
    """Return q ∝ v [N, C], where p_i(l) ≈ u_i v_l on the entries of ``classes_of``.

    ``steps`` of alternating least squares from v = 1, in probability space (section 3.3.2).
    """
    mask = classes_of[:, None, :].to(p.dtype)
    v = torch.ones_like(p[0])
    for _ in progress.steps(range(steps), "step"):
        u = (p * v).sum(2) / (mask * v.square()).sum(2).clamp_min(TINY)
        v = (p * u[:, :, None]).sum(0) / (mask * u.square()[:, :, None]).sum(0).clamp_min(TINY)
    return v / v.sum(1, keepdim=True).clamp_min(TINY)
