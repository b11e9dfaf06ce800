"""LWN: clients exchange a light-weight network and keep their own models.

"Cost Effective Federated Learning for Heterogeneous Systems", Light Weight Network; FedORION
extends it.

Client i stores its own model w_i of any architecture and receives a copy of the small network w
(the global architecture). Deep mutual learning on each batch (x, y), with C(x) = C(x; w_i) and
S(x) = S(x; w), both losses from the same two forward passes:

    L_c = CE(C(x), y) + KL(S(x) → C(x))        w_i ← w_i − η ∇L_c
    L_s = CE(S(x), y) + KL(C(x) → S(x))        w   ← w   − η ∇L_s

KL(a → b) is KL(softmax a ‖ softmax b) without gradient for the teacher a. The client sends only its
copy s_i of w.

Server, on noise z ~ N(0, 1), all networks on the statistics of the batch:

    L = KL(max_i σ(S(z; s_i)) ‖ σ(S(z; w)))    w ← w − η_s ∇L

Deviations, with their switches:
- The maximum of distributions is not a distribution, so it is divided by its sum
  (``noise.max-norm``).
- The paper does not define the start of the server's distillation: ``init = "previous"`` is the
  previous w, ``"average"`` the mean of the s_i with the settings of [average].
- The paper prints the arguments of KL in two orders; here it is always KL(teacher ‖ student).
- The paper gives no settings; batches, epochs and rates of the distillation are FedORION's. The
  running statistics of w do not match any data. With BatchNorm set ``score.bn = "recalibrated"``,
  which also makes the saved w usable, or ``"batch"`` (transductive, as in our experiments).
- In asynchronous rounds, which the paper does not have, a teacher is the model that a client
  trained, of whatever version, and its weight does not depend on its age.
"""

from typing import ClassVar, Literal, final

from common.methods.fedavg import Averaging, Reply, Request
from common.settings.config import NO_NOISE

CLIENT = "fedkemf"


@final
class Options(Averaging):
    """Options of LWN. Request: the small network w; reply: the trained copy s_i."""

    facts = Averaging.facts.but(
        asynchronous="training",
        down="the small network w",
        up="the small network w",
        kept="θ_k, whole",
        sends="a small network",
        leaves="the trained copy of the small network; the own model stays with the client",
        infers="the same as with `fedavg`, of the small network",
        own="θ_k",
        part="part",
        networks="own",
    )

    leaks = "single clients' networks that the server distils"
    no_texts = NO_NOISE

    uses = ("average", "oca", "finetune", "noise")
    auto = {"average.weights": "uniform"}

    dml: ClassVar = "kl"
    order: ClassVar = "joint"
    init: Literal["previous", "average"] = "previous"
    """Start of the server's distillation: the previous w, or the mean of the s_i."""

    @property
    def averages_nothing(self) -> str:
        return 'lwn.init = "previous"' if self.init == "previous" else ""
