"""HetLoRA: low-rank adapters of a different rank at each client, which shrinks where it may.

Cho, Liu, Xu, Fahrezi, Joshi, "Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation
Models", EMNLP 2024, section 3.

Client k has the frozen network W and an adapter of rank r_k in each chosen layer, W + s B_k A_k;
the server has A and B of the largest rank. Round t: the server sends client k the first r_k rows of
A and columns of B (truncation). The client minimises

    L + λ Σ_layers ‖B_k[:, c:]‖_F ‖A_k[c:, :]‖_F,   c = max(rank-min, ⌊γ r_k⌋)

and, if that sum is smaller than on arrival, cuts off the last r_k − c rows and columns for good, so
that r_k ← c (self-pruning). It sends A_k, B_k and r_k. The server pads both factors with zeros to
the largest rank and sets

    A ← Σ_{k∈S_t} p_k A_k,   B ← Σ_{k∈S_t} p_k B_k,   p_k ∝ ‖B_k A_k‖_F

(sparsity-weighted aggregation). The head for classes has FedAvg's mean.

With zeros, rows above the rank of a small client shrink in every round even without training.
``mixed = "rows"`` averages each row over the clients that have it instead. With equal ranks, no
pruning (``gamma = 1``) and ``weigh = "samples"`` the method is ``fedit``, bit for bit.

Deviations:
- The paper does not say whether the norm is of all layers together or of each (``norm``), nor are
  γ and λ known; the defaults are those of a re-implementation.
- A client with r_k = ``rank-min`` has no penalty, as it cannot shrink.
- s is the same for all ranks: a mean of factors under several s = α / r is refused.
- The authors released no code.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, final

import torch
from pydantic import Field
from torch import Tensor

from common.exchange import protocol
from common.exchange.protocol import Name
from common.methods.fedavg import Averaging
from common.models.adapters import A, B, pairs
from common.settings.config import EVERY, Required
from common.settings.section import AtLeastOne, NonNegative
from common.techniques.adapters import check_adapters
from common.training.task import Task


@final
class Options(Averaging):
    """Options of HetLoRA."""

    facts = Averaging.facts.but(
        down="the first rows of A and columns of B, and the head for classes",
        up="A_k, B_k, r_k and the head for classes",
        sends="adapters",
        leaves="the trained adapters with their rank, and the head for classes",
        infers="the same as with `fedavg`: an update of low rank tells the same of the samples",
        whole="the base with the adapter of the largest rank",
        networks="parts",
    )

    uses = ("average", "finetune")
    objectives = EVERY
    schemes = ("width",)
    auto = {"average.across": "width"}
    leaks = "parts that few clients may share"
    requires = {
        "average.robust": Required("none", why=", whose clients have parts of the factors"),
        "average.server-optimizer": Required("none", why=", whose clients' ranks differ"),
        "oca.aggregate": Required("off", why=", which averages shrinking ranks"),
        "adapter.alpha": Required(0, why=", which averages factors: s = alpha / r would differ"),
    }

    gamma: Annotated[float, Field(gt=0, le=1)] = 0.99
    """γ, share of the rank that remains where a client prunes it; 1: it never does."""
    prune_weight: NonNegative = 0.01
    """λ, weight of the penalty on what could be pruned."""
    rank_min: AtLeastOne = 1
    """Smallest rank after pruning."""
    weigh: Literal["norm", "samples"] = "norm"
    """Weights of the clients' factors: by the norm of their update, or as ``average.weights``."""
    norm: Literal["model", "layer"] = "model"
    """Norm of a client's update: of all layers together, or of each layer, for its own mean."""
    mixed: Literal["zeros", "rows"] = "zeros"
    """Rows of A and columns of B that a client lacks: zeros in the mean, or not in the mean."""

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        check_adapters(task, specs, mixed=True)
        super().check_fleet(task, specs)

    def kept(self, rank: int) -> int:
        """Return c, the rank after pruning an adapter of this rank."""
        return min(rank, max(self.rank_min, int(self.gamma * rank + 1e-9)))


@final
class Request(protocol.ModelRequest, kind="hetlora.Down"):
    """Request with ``w``, the client's part of both factors."""

    spec: Name  #: the network of w, whose rank is r_k


@final
class Reply(protocol.ModelReply, kind="hetlora.Up"):
    """Reply with the trained factors of rank r_k after pruning."""

    rank: AtLeastOne


def squared_norms(w: Mapping[str, Tensor]) -> dict[str, float]:
    """Return ‖B A‖_F² of each layer of an adapter, without the product: tr((Bᵀ B) (A Aᵀ))."""
    return {
        layer: max(float(((b.T.double() @ b.double()) * (a.double() @ a.double().T)).sum()), 0.0)
        for layer, a, b in pairs(w)
    }


def tail(w: Mapping[str, Tensor], rank: int) -> Tensor:
    """Return Σ_layers ‖B[:, c:]‖_F ‖A[c:, :]‖_F with c = ``rank``; 0 if there is no tail."""
    return torch.stack([b[:, rank:].norm() * a[rank:].norm() for _, a, b in pairs(w)]).sum()


def truncated(w: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Return the first ``rank`` rows of A and columns of B of each layer, and all other entries."""
    result = dict(w)
    for layer, a, b in pairs(w):
        result |= {f"{layer}.{A}": a[:rank].clone(), f"{layer}.{B}": b[:, :rank].clone()}
    return result
