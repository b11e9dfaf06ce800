"""DL-SH: one-shot distillation weighted by the clients' confidences; plain distillation, ODIN.

"Adaptive Dual-Mode Distillation with Incentive Schemes for Scalable, Heterogeneous Federated
Learning on Non-IID Data", section 3.1, Algorithms 1 and 2; Ma, Yonetani, Iqbal, "Adaptive
Distillation for Decentralized Learning from Heterogeneous Clients" (DLAD), ICPR 2020.

The server and all clients have the same N unlabelled public images X_dist (``data.public``).
Client i has private samples (X_i, Y_i), any architecture and all C classes in its head:

    M_i: E epochs of CE on (X_i, Y_i)                                      (Algorithm 1, 2-8)
    C_i: M_i with a new head of 2 nodes, E_embed epochs of CE on
         X_i (label 0) ∪ X_dist (label 1)                                  (9-20)
    up:  M_i(X_dist) [N, C],  w_i = P_{C_i}(label 0 | X_dist) [N]

In the ideal case w_i(x) = p_i(x) / (p_dist(x) + p_i(x)) (eq. 2), which grows with p_i(x). Server:

    W_i(x) = exp(w_i(x)/T) / Σ_j exp(w_j(x)/T)                             (4)
    Y_g(x) = Σ_i W_i(x) M_i(x)                                             (1)
    M_tgt: E_g epochs of CE between Y_g and M_tgt on X_dist                (Algorithm 2, 8-14)

Baselines of the paper in the same pipeline, with their switches:
- plain distillation: ``confidence.kind = "uniform"``, W_i = 1/M; clients train no C_i and send no
  w_i.
- ODIN (Liang et al. 2018): ``confidence.kind = "odin"``, w_i is the ODIN score of M_i. The scores
  are rescaled to [0, 1] over X_dist, because they are almost equal at T = 1000.
- global_true, the labelled upper bound: ``targets = "labels"``, M_tgt learns the true classes of
  X_dist and ignores the clients' replies. No real federation has these labels.

With an incentive (``incentive = "model"`` or ``"ensemble"``) every client receives θ, which is
M_tgt(X_dist) or Y_g, in a second exchange of the round. Section 3.3 describes this for DL-SH; θ is
neither mapped nor masked. The client trains M_i for ``incentive-epochs`` epochs on (X_dist, θ). It
reports its accuracy on the whole test set before and after. ``"none"`` is the paper's DL-SH.

A free rider (``free-riders = N``: the first N clients) trains M_i for its own use only. It sends a
uniform distribution over the classes for every public image, with confidence 1, and receives the
incentive like every client. The paper has no such client.

The method has one round. In further rounds every client continues from its stored M_i, and the
server from its M_tgt.

Deviations, with their switches:
- Algorithm 2, lines 4-6, multiplies mean predictions by mean weights. Because Σ_i W_i = 1, this is
  plain distillation (``ensemble.aggregation = "literal_product"``). The default follows equation 1
  (``"weighted_sum"``).
- The targets of cross-entropy must be distributions, so clients send probabilities
  (``exchange = "probs"``). ``"logits"`` weights logits and takes the softmax of the sum.
- Equation 4 writes C(x/T), Algorithm 2 writes w/T; the implementation uses w/T. The paper gives no
  T. Since w is within [0, 1], T = 1 gives almost equal weights, so ``confidence.temperature`` is
  0.1. With the logit of w (``confidence.space = "logit"``) T = 1 is a useful value.
- "Sigmoid outputs" of a 2-node head are read as its softmax. Private samples have label 0, so w is
  1 − P(1).
- C_i starts from M_i (``confidence.init = "local"``) or from new weights (``"scratch"``); the paper
  "modifies the client's local model".
- X_dist is larger than X_i. ``confidence.balance = "plain"`` keeps this imbalance, as Algorithm 1
  does; ``"weights"`` balances the loss, ``"sampling"`` repeats the smaller set.
- C_i is evaluated on the same public images that it trained on. With many ``confidence.epochs`` on
  few images it memorises them, and w_i carries no information.
- M_i, C_i and M_tgt share one optimiser, learning rate and batch size ([train]), as in the
  algorithms.
"""

from typing import Annotated, Any, ClassVar, Literal, final

from jaxtyping import Shaped
from pydantic import Field
from torch import Tensor

from common.data import kinds
from common.exchange import protocol
from common.exchange.predictions import Predictions
from common.settings.config import Config, OwnModels, not_allowed
from common.settings.marks import Mark
from common.settings.section import AtLeastOne
from common.techniques.public_set import OnPublicSet


class Distilling(OnPublicSet):
    """Options of methods that distil the clients' predictions for the public set."""

    classes_only = "a client predicts the classes that it has"

    facts = OwnModels.facts.but(
        asynchronous="together",
        down="predictions for public images",
        up="predictions for public images",
        sends="predictions for public images",
        leaves="class probabilities (or logits) for each public image, and a confidence for each;"
        " with an incentive, accuracies on the whole test set before and after",
        infers="the private model's predictions for images that the server has too: they show "
        "which classes it was trained on; by the confidence, which public images resemble private"
        " ones",
        whole="the server's model",
        rounds="one",
        public="everybody",
    )

    uses = ("confidence", "ensemble")
    leaks = "predictions about public images"
    rules: ClassVar[tuple[str, ...]] = ("weighted_sum", "literal_product", "median")
    """Values of ``ensemble.aggregation`` that this method allows."""

    free_riders: Annotated[int, Field(ge=0)] = 0
    """Number of clients, the first ones, that send uniform predictions with confidence 1."""

    def check(self, config: Config) -> None:
        super().check(config)
        name, rule = config.run.method, config.ensemble.aggregation
        if rule not in self.rules:
            raise not_allowed("ensemble.aggregation", rule, f'method = "{name}"', *self.rules)
        if 0 < config.run.clients <= self.free_riders:
            raise ValueError(
                f"{name}.free-riders = {self.free_riders} is not allowed; it should be below the "
                f"number of clients, {config.run.clients}"
            )

    def check_fleet(self, task: Any, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        kind = task.config.confidence.kind
        if kind == "odin" and kinds.vocab_of(task.shape):
            why = "texts: it moves samples along a gradient, and tokens have none"
            raise not_allowed("confidence.kind", kind, why, "classifier", "uniform")


@final
class Options(Distilling):
    exchange: Literal["probs", "logits"] = "probs"
    """Predictions that clients send and the server weights."""
    targets: Literal["ensemble", "labels"] = "ensemble"
    """Targets of M_tgt: Y_g, or the true classes of X_dist (an upper bound)."""
    incentive: Literal["none", "model", "ensemble"] = "none"
    """Predictions that clients receive and train on: those of M_tgt, or Y_g."""
    incentive_epochs: Annotated[AtLeastOne, Mark.CLIENT_EPOCHS] = 5
    """Epochs of a client on these predictions."""

    def check(self, config: Config) -> None:
        super().check(config)
        if self.targets == "labels" and self.incentive == "ensemble":
            raise not_allowed(
                "dl-sh.incentive", self.incentive, 'dl-sh.targets = "labels"', "none", "model"
            )


@final
class Request(protocol.Request, kind="dl_sh.Down"):
    """Request without content: all other information is in the configuration."""


@final
class Reply(Predictions, protocol.Reply, kind="dl_sh.Up"):
    """Reply with theta = M_i(X_dist)."""

    w: Shaped[Tensor, " N"] | None  #: w_i on the wire; None under confidence.kind = "uniform"
