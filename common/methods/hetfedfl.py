"""Heterogeneous FedFL: distillation to clients on their data and to the server on noise.

"Cost Effective Federated Learning for Heterogeneous Systems", Heterogeneous FedFL.

Client i stores its own model w_i of any architecture; the server's w is a frozen teacher:

    L_CEKL = CE(C(x; w_i), y) + KL(S(x; w) → C(x; w_i))    w_i ← w_i − η ∇L_CEKL

KL(a → b) is KL(softmax a ‖ softmax b) without gradient for the teacher a. The client sends w_i.

Server, on noise z ~ N(0, 1), all networks on the statistics of the batch, w ← w − η_s ∇L with

    transfer = "combine":    L = 1/K Σ_i KL(C(z; w_i) → S(z; w))
    transfer = "ensemble":   L = KL(max_i σ(C(z; w_i)) ‖ σ(S(z; w)))

No weights are averaged: w is trained on noise alone.

Deviations, with their switches:
- The maximum of distributions is not a distribution, so it is divided by its sum
  (``noise.max-norm``).
- The paper does not define the frozen teacher's normalisation. Its running statistics do not match
  any data, so it uses the statistics of the batch (``teacher-bn``); dropout is off.
- In round 1 the teacher is the untrained w, as in the paper.
- The paper prints the arguments of KL in two orders; here it is always KL(teacher ‖ student).
- The paper gives no settings; batches, epochs and rates of the distillation are FedORION's. The
  running statistics of w do not match any data. With BatchNorm set ``score.bn = "recalibrated"``,
  which also makes the saved w usable, or ``"batch"`` (transductive, as in our experiments).
- In asynchronous rounds, which the paper does not have, a teacher is the model that a client
  trained, of whatever version, and its weight does not depend on its age.
"""

from typing import Literal, final

from common.exchange import protocol
from common.exchange.protocol import ModelRequest as Request
from common.exchange.records import StateDict
from common.settings.config import NO_NOISE, MethodOptions, OwnModels


@final
class Options(MethodOptions):
    facts = OwnModels.facts.but(
        asynchronous="models",
        down="w",
        up="θ_k",
        sends="a network",
        leaves="the client's own model",
        infers="the same as with `fedavg`, of the own model",
        whole="w",
        part="whole",
    )

    leaks = "clients' own models, whole"
    no_texts = NO_NOISE

    uses = ("noise",)

    transfer: Literal["combine", "ensemble"] = "combine"
    """Loss of the server: the mean divergence from every client, or that from their ensemble."""
    teacher_bn: Literal["batch", "running"] = "batch"
    """BatchNorm statistics of the server's model when it is a client's teacher."""


@final
class Reply(protocol.Reply, kind="hetfedfl.Up"):
    """Reply with the client's own model."""

    local: StateDict  #: w_i
