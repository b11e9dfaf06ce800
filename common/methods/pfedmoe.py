"""pFedMoE: a private gate mixes the features of a shared small extractor and a private large one.

Yi et al., "pFedMoE: Data-Level Personalization with Mixture of Experts for Model-Heterogeneous
Personalized Federated Learning", 2024 (arXiv 2402.01350).

Client k has a private network of any architecture, with features f_k(x) in R^K and a head h_k, and
a private gate g_k. The global architecture is a small network, of which only the extractor w is
used, with features f_w(x) in R^K. Round t:

    server: sends w
    client: α = softmax(g_k(x)),  r = α_0 f_w(x) + α_1 f_k(x)
            trains w_k, from w, and f_k, h_k, g_k together on CE(h_k(r), y), and sends w_k
    server: w ← Σ_{k∈S_t} p_k w_k

The gate reads the input x: flatten, Linear(d, m), sigmoid, Linear(m, 2). All architectures and the
small one need the same K: ``feature-dim``. Each client scores the mixture with the newest w. There
is no global model; the run's file of the model has w.

If the gate always gives α = (0, 1), this is ``local``. With α = (1, 0) it is FedPer of the small
extractor.

Bytes: 4 P each way for the P numbers of the small extractor, without its head.

Deviations:
- The authors' code was not found. The method is that of the abstract. Where it leaves something
  open, it is what two independent implementations have in common (fldy2639/pFedMoE 3ee752f and
  thuiaaa/MHPFL ff00894), unless a line below says otherwise.
- The paper normalises the gate's input (switchable normalisation). The default gate has no
  normalisation and m = 64, as in the first implementation. ``gate-norm = "layer"`` normalises each
  input by its own mean and variance, as the second one does with m = 128. That one also has
  BatchNorm after both linear layers, which fails on a batch of one sample.
- The gate of texts reads the mean of learnt vectors of 64 numbers, one for each token; ids are no
  numbers that a linear layer could read.
- The first implementation scores h_k(f_k(x)), which is not what it trains. Here and in the second
  one the mixture is scored.
- The published settings were not checked. Both implementations have SGD with rate 0.01 and batches
  of 128; K is 128 or 500.
"""

from typing import Annotated, Literal, final

from pydantic import Field

from common.exchange.protocol import ModelReply as Reply
from common.exchange.protocol import ModelRequest as Request
from common.exchange.records import StateDict
from common.methods.fedmrl import Joined
from common.settings.config import OF_SAMPLES
from common.techniques.features import check_heads, feature_width
from common.training.task import Task, global_spec

__all__ = ["Options", "Reply", "Request", "extractor"]


@final
class Options(Joined):
    """Options of pFedMoE. Request: the small extractor w; reply: the trained w_k."""

    objectives = OF_SAMPLES

    facts = Joined.facts.but(
        down="the small extractor w, without a head",
        up="the small extractor w, without a head",
        kept="θ_k, whole, and the gate g_k",
        sends="a small extractor",
        leaves="the trained copy of the small extractor; its head is not used, and the own "
        "network and the gate stay with the client",
        infers="the same as with `fedavg`, of the small extractor, without the head's rows",
        own="θ_k and g_k with the newest w",
    )

    gate_hidden: Annotated[int, Field(ge=1, le=100_000)] = 64
    """m, number of hidden units of the gate."""
    gate_norm: Literal["none", "layer"] = "none"
    """Normalisation of the gate's input: none, or by the mean and variance of each input."""

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        every = (global_spec(task), *specs)
        check_heads(task, every)
        feature_width(task, every)


def extractor(weights: StateDict) -> StateDict:
    """Return the entries of a network's ``weights`` that are not those of its head."""
    return {name: value for name, value in weights.items() if not name.startswith("head.")}
