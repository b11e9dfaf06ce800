"""FedSSA: clients fuse the head rows of their classes with the means of other clients' rows.

Yi et al., "FedSSA: Semantic Similarity-based Aggregation for Efficient Model-Heterogeneous
Personalized Federated Learning", IJCAI 2024.

Client k has a private model θ_k of any architecture: features f_k(x) in R^K and a linear head. Row
c of a head are the K weights and the bias of class c. Client k holds the classes of its training
samples. Round t = 1, 2, …:

    μ_t = μ cos(π (t − 1) / 2T) for t − 1 < T, else 0
    client: own_c ← global_c + μ_t own_c for the classes c that it holds, trains all of θ_k on
            CE(h_k(f_k(x)), y), and sends its trained rows of these classes
    server: global_c ← mean of the received rows of class c; without any, global_c stays

The first rows global_c are those of the global architecture's initial network. Rows grow while
μ_t > 0, because the fusion is a sum and no mean. θ_k is scored after its training, before the next
fusion. All architectures need the same K: one architecture, or ``feature-dim``.

With μ = 0, and if every client holds every class, this is LG-FedAvg with ``average.weights =
"uniform"`` before its score.

Bytes of a client and round: 4 (K + 1) C down for C classes, 4 (K + 1) for each held class up. Which
rows a client sends tells the server which classes it holds.

Membership: with ``stale``, the mean has the newest rows of all members; a newcomer counts with the
server's rows until it replies.

Deviations, with their switches:
- The released code averages the last rows of all clients, also of those not selected in the round,
  and the first rows of those that were never selected (``stale = true``). Here the mean is over the
  clients of the round, in asynchronous rounds over the last rows of all members (as ``stale``).
- Its clients share tensors in the first round, so that some start from the trained models of
  others, and rows of several holders are fused more than once. Here every client has its own model.
- Clients have equal weights, as in the released code, which counts samples but does not use the
  counts (``average.weights = "samples"``).
- The default T is that of the released code for different architectures; its T for one architecture
  is 45. It divides by T, so that T = 0 fails; here T = 0 means μ_t = 0.
- The released code limits the gradient norm to 50 (``train.clip = 50``), has SGD with momentum 0.9,
  rate 0.005 and weight decay 5e-5, batches of 512, and 25 local epochs (10 for one architecture).
- It scores the clients of the round by the mean over batches; here all clients score, by samples.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, final

import torch
from pydantic import Field
from torch import Tensor, nn

from common.exchange.protocol import ModelReply as Reply
from common.exchange.protocol import ModelRequest as Request
from common.exchange.records import StateDict
from common.methods.lg_fedavg import SharedHead
from common.settings.section import NonNegative

__all__ = ["Options", "Reply", "Request", "fuse", "row", "rows"]


@final
class Options(SharedHead):
    """Options of FedSSA. Request: all rows; reply: the trained rows of the client's classes."""

    classes_only = "the rows of its head belong to classes"
    facts = SharedHead.facts.but(
        asynchronous="tables",
        down="the head's rows",
        up="those of held classes",
        sends="rows of a head",
        leaves="the trained rows of the head of the classes that the client has; all else stays "
        "with the client",
        infers="the same as with `lg-fedavg`; the rows name the client's classes. A row of a "
        "class that it has not by the census, or a missing one, is refused. With `fedssa.stale` "
        "the server keeps the last rows of each client",
        own="θ_k",
    )

    auto = {"average.weights": "uniform"}
    leaks = "head rows without noise, which name the classes of single clients"

    mu: NonNegative = 0.5
    """μ, weight of the client's own rows in the first round's fusion."""
    fusion_rounds: Annotated[int, Field(ge=0)] = 2
    """T, number of rounds over which the weight of the own rows falls from μ to 0; 0: it is 0."""
    stale: bool = False
    """Whether the mean has the last rows of every client, instead of those of the round's clients.
    A client that was never selected counts with the first rows."""

    def mu_at(self, t: int) -> float:
        """Return μ_t of round t ≥ 1."""
        past, T = t - 1, self.fusion_rounds
        return self.mu * math.cos(math.pi * past / (2 * T)) if past < T else 0.0


def row(c: int) -> str:
    """Return the name of the row of class c in messages."""
    return f"class {c}"


def rows(head: nn.Linear, classes: Iterable[int]) -> StateDict:
    """Return a copy of the head's rows [K + 1] of the ``classes`` by name, on the CPU."""
    table = _table(head).cpu()
    return {row(c): table[c].clone() for c in classes}


@torch.no_grad()
def fuse(
    head: nn.Linear, received: Mapping[str, Tensor], classes: Iterable[int], mu: float
) -> None:
    """Set the head's row of each of the ``classes`` to the received one plus ``mu`` times itself.

    ``received``: the server's rows [K + 1] by name, at least those of ``classes``.
    """
    table = _table(head)
    for c in classes:
        table[c] = received[row(c)].to(table.device) + mu * table[c]
    head.weight.copy_(table[:, :-1])
    head.bias.copy_(table[:, -1])


def _table(head: nn.Linear) -> Tensor:
    """Return the weights and biases of a head as a matrix [C, K + 1]."""
    return torch.cat([head.weight, head.bias[:, None]], dim=1).detach()
