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
- plain distillation: ``confidence.kind = "uniform"``, W_i = 1/M; no C_i, and no w_i travels.
- ODIN (Liang et al. 2018): ``confidence.kind = "odin"``, w_i is the ODIN score of M_i, stretched to
  [0, 1] over X_dist because at T = 1000 all scores nearly agree.
- global_true, the labelled upper bound: ``targets = "labels"``, M_tgt learns the true classes of
  X_dist, which no real federation has; what the clients send is left aside.

With an incentive (``incentive = "model"`` or ``"ensemble"``) every client gets θ = M_tgt(X_dist) or
Y_g in a second exchange of the round, as section 3.3 says of DL-SH: nothing is mapped or masked.
It goes on from M_i with ``incentive-epochs`` epochs of CE on (X_dist, θ) and tells its accuracy on
the whole test set before and after. ``"none"`` is the paper's DL-SH.

A free rider (``free-riders = N``: the first N clients) trains its M_i for itself, says the same
probability of every class about every public image, with the confidence 1, and takes what the
server gives back like everybody. The paper names no such client.

One round is the method. In further rounds every client goes on from its own M_i, which it keeps,
and the server from its M_tgt.

Deviations, with their switches:
- Algorithm 2, lines 4-6, multiplies mean predictions by mean weights; as Σ_i W_i = 1 that is plain
  distillation (``ensemble.aggregation = "literal_product"``). We follow equation 1, which is
  ``"weighted_sum"``.
- The targets of cross-entropy must be distributions: probabilities travel (``exchange = "probs"``).
  ``"logits"`` weighs logits and takes the softmax of the sum.
- Equation 4 writes C(x/T), Algorithm 2 w/T; we take w/T. The paper names no T: w is within [0, 1],
  so T = 1 would hardly prefer anyone; ``confidence.temperature`` is 0.1. The logit of w
  (``confidence.space = "logit"``) makes T = 1 sensible.
- "Sigmoid outputs" of a 2-node head: its softmax. Private samples have label 0, so w is 1 − P(1).
- C_i starts from M_i (``confidence.init = "local"``) or anew (``"scratch"``); the paper "modifies
  the client's local model". X_dist outnumbers X_i: ``confidence.balance = "plain"`` leaves it so,
  as Algorithm 1; ``"weights"`` balances the loss, ``"sampling"`` repeats the fewer. C_i is asked
  about the very images that it learnt to call public: with many ``confidence.epochs`` on few images
  it learns them by heart, and w_i says nothing any more.
- One optimiser, learning rate and batch size ([train]) for M_i, C_i and M_tgt, as in the
  algorithms.
"""

from typing import Annotated, ClassVar, Literal, final

from jaxtyping import Shaped
from pydantic import Field
from torch import Tensor

from common import protocol
from common.config import Config, not_allowed
from common.predictions import Predictions
from common.public_set import OnPublicSet
from common.section import AtLeastOne


class Distilling(OnPublicSet):
    """Options of methods that distil the clients' predictions for the public set."""

    uses = ("confidence", "ensemble")
    rules: ClassVar[tuple[str, ...]] = ("weighted_sum", "literal_product")
    """What ``ensemble.aggregation`` may be with this method."""

    free_riders: Annotated[int, Field(ge=0)] = 0
    """The first so many clients say nothing about the public set, and that they are sure of it."""

    def check(self, config: Config) -> None:
        super().check(config)
        name, rule = config.run.method, config.ensemble.aggregation
        if rule not in self.rules:
            raise not_allowed("ensemble.aggregation", rule, f'method = "{name}"', *self.rules)
        if self.free_riders and self.free_riders >= config.run.clients:
            raise ValueError(
                f"{name}.free-riders = {self.free_riders}; of {config.run.clients} clients one "
                "at least must say something"
            )


@final
class Options(Distilling):
    leaks = "predictions about public images"

    exchange: Literal["probs", "logits"] = "probs"
    """What travels and is weighed."""
    targets: Literal["ensemble", "labels"] = "ensemble"
    """What M_tgt learns: Y_g, or the true classes of X_dist (an upper bound)."""
    incentive: Literal["none", "model", "ensemble"] = "none"
    """What clients get back to learn from: what M_tgt says about the public set, or Y_g."""
    incentive_epochs: AtLeastOne = 5
    """Epochs of the client on what it gets."""

    def check(self, config: Config) -> None:
        super().check(config)
        if self.targets == "labels" and self.incentive == "ensemble":
            raise not_allowed(
                "dl-sh.incentive", self.incentive, 'dl-sh.targets = "labels"', "none", "model"
            )


@final
class Down(protocol.Down):
    """Go: everything else is agreed."""


@final
class Up(Predictions, protocol.Up):
    """theta is M_i(X_dist)."""

    w: Shaped[Tensor, " N"] | None  #: w_i on the wire; None under confidence.kind = "uniform"
