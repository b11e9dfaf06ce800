"""DL-SH: one-shot distillation from clients that say how sure they are; plain distillation, ODIN.

"Adaptive Dual-Mode Distillation with Incentive Schemes for Scalable, Heterogeneous Federated
Learning on Non-IID Data", section 3.1, Algorithms 1 and 2; Ma, Yonetani, Iqbal, "Adaptive
Distillation for Decentralized Learning from Heterogeneous Clients" (DLAD), ICPR 2020.

Everybody holds the same unlabelled public images X_dist (``data.public``), N of them. Client i,
with (X_i, Y_i), any architecture and all C classes in its head:

    M_i: E epochs of CE on (X_i, Y_i)                                      (Algorithm 1, 2-8)
    C_i: M_i with a new head of 2 nodes, E_embed epochs of CE on
         X_i (label 0) ∪ X_dist (label 1)                                  (9-20)
    up:  M_i(X_dist) [N, C],  w_i = P_{C_i}(label 0 | X_dist) [N]

Ideally w_i(x) = p_i(x) / (p_dist(x) + p_i(x)) (eq. 2), which grows with p_i(x). Server:

    W_i(x) = exp(w_i(x)/T) / Σ_j exp(w_j(x)/T)                             (4)
    Y_g(x) = Σ_i W_i(x) M_i(x)                                             (1)
    M_tgt: E_g epochs of CE between Y_g and M_tgt on X_dist                (Algorithm 2, 8-14)

Baselines of the paper in the same pipeline, by switches:
- plain distillation: ``confidence = "uniform"``, W_i = 1/M; no C_i, and no w_i travels.
- ODIN (Liang et al. 2018): ``confidence = "odin"``, w_i is the ODIN score of M_i, stretched to
  [0, 1] over X_dist because at T = 1000 all scores nearly agree.
- global_true, the labelled upper bound: ``targets = "labels"``, M_tgt learns the true classes of
  X_dist, which no real federation has; what the clients send is left aside.

One round is the method. In further rounds every client goes on from its own M_i, which it keeps,
and the server from its M_tgt.

Deviations, with their switches:
- Algorithm 2, lines 4-6, multiplies mean predictions by mean weights; as Σ_i W_i = 1 that is plain
  distillation (``aggregation = "literal_product"``). We follow equation 1 (``"weighted_sum"``).
- The targets of cross-entropy must be distributions: probabilities travel (``exchange = "probs"``).
  ``"logits"`` weighs logits and takes the softmax of the sum.
- Equation 4 writes C(x/T), Algorithm 2 w/T; we take w/T. The paper names no T: w is within [0, 1],
  so T = 1 would hardly prefer anyone; ``conf-t`` is 0.1. ``conf-space = "logit"`` takes the logit
  of w first, which makes T = 1 sensible.
- "Sigmoid outputs" of a 2-node head: its softmax. Private samples have label 0, so w is 1 − P(1).
- C_i starts from M_i (``conf-init = "local"``) or anew (``"scratch"``); the paper "modifies the
  client's local model". X_dist outnumbers X_i: ``embed-balance = "plain"`` leaves it so, as
  Algorithm 1; ``"weights"`` balances the loss, ``"sampling"`` repeats the fewer. C_i is asked about
  the very images that it learnt to call public: with many ``embed-epochs`` on few images it learns
  them by heart, and w_i says nothing any more.
- One optimiser, learning rate and batch size ([train]) for M_i, C_i and M_tgt, as in the
  algorithms.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

from jaxtyping import Shaped
from pydantic import Field
from torch import Tensor

from common import protocol
from common.config import NonNegative, Positive, Section


class Distilling(Section):
    """Knobs of every method that distils clients' predictions on the public set."""

    needs_public: ClassVar[bool] = True

    confidence: Literal["classifier", "odin", "uniform"]
    """What weighs a client's prediction: C_i, the ODIN score of M_i, or nothing."""
    conf_t: Positive  #: T of equation 4
    conf_space: Literal["prob", "logit"]
    conf_init: Literal["local", "scratch"]
    embed_epochs: Annotated[int, Field(ge=1)]  #: E_embed
    embed_balance: Literal["plain", "weights", "sampling"]
    odin_temperature: Positive
    odin_epsilon: NonNegative
    """Step in pixels of [0, 1]."""
    server_epochs: Annotated[int, Field(ge=1)]  #: E_g


@final
class Config(Distilling):
    aggregation: Literal["weighted_sum", "literal_product"]
    exchange: Literal["probs", "logits"]
    targets: Literal["ensemble", "labels"]


@final
class Down(protocol.Down):
    """Go: everything else is agreed."""


@final
class Up(protocol.Up):
    theta: Shaped[Tensor, "N C"]  #: M_i(X_dist) in the wire's dtype
    low: float
    """What a byte 0 of theta stands for; 0 for probabilities."""
    high: float
    """What a byte 255 of theta stands for; 1 for probabilities."""
    w: Shaped[Tensor, " N"] | None  #: w_i on the wire; None under confidence = "uniform"
