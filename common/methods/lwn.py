"""LWN: clients exchange a light-weight network and keep their own models.

"Cost Effective Federated Learning for Heterogeneous Systems", Light Weight Network: FedORION's
ancestor.

Client i stores its own model w_i of any architecture and receives a copy of the small network w
(the global architecture). Deep mutual learning on each batch (x, y), with C(x) = C(x; w_i) and
S(x) = S(x; w), both losses from the same two forward passes:

    L_c = CE(C(x), y) + KL(S(x) → C(x))        w_i ← w_i − η ∇L_c
    L_s = CE(S(x), y) + KL(C(x) → S(x))        w   ← w   − η ∇L_s

KL(a → b) is KL(softmax a ‖ softmax b), the teacher a detached. Only the copy goes back, as s_i.

Server, on noise z ~ N(0, 1), all networks on the statistics of the batch:

    L = KL(max_i σ(S(z; s_i)) ‖ σ(S(z; w)))    w ← w − η_s ∇L

Deviations, with their switches:
- The maximum of distributions is none; we divide it by its sum (``noise.max-norm``).
- Whether the server starts from the previous w or from the mean of the s_i is not said:
  ``init = "previous"``, or ``"average"`` as [average] says.
- The paper prints the arguments of KL in two orders; ours is always KL(teacher ‖ student).
- No setting is given; batches, epochs and rates of the distillation are FedORION's. The server's
  BatchNorm never sees data, so the running statistics of w mean nothing: with networks that have
  BatchNorm set ``score.bn = "recalibrated"``, with which w also works as saved, or ``"batch"``
  (transductive), as in the paper's experiments here.
"""

from typing import ClassVar, Literal, final

from common.methods.fedavg import Averaging, Reply, Request

CLIENT = "fedkemf"


@final
class Options(Averaging):
    """Messages: w, the small network, and s_i, trained from it."""

    leaks = "single clients' networks that the server distils"
    uses = ("average", "oca", "noise")
    auto = {"average.weights": "uniform"}

    dml: ClassVar = "kl"
    order: ClassVar = "joint"
    init: Literal["previous", "average"] = "previous"
    """Start of the server's distillation: the previous w, or the mean of the s_i."""

    @property
    def averages_nothing(self) -> str:
        return 'lwn.init = "previous"' if self.init == "previous" else ""
