"""Heterogeneous FedFL: the server teaches the clients on data, they teach it on noise.

"Cost Effective Federated Learning for Heterogeneous Systems", Heterogeneous FedFL.

Client i holds its own model w_i of any architecture, for good; the server's w is a frozen teacher:

    L_CEKL = CE(C(x; w_i), y) + KL(S(x; w) → C(x; w_i))    w_i ← w_i − η ∇L_CEKL

KL(a → b) is KL(softmax a ‖ softmax b), the teacher a detached. The client uploads w_i.

Server, on noise z ~ N(0, 1), all networks on the statistics of the batch, w ← w − η_s ∇L with

    transfer = "combine":    L = 1/K Σ_i KL(C(z; w_i) → S(z; w))
    transfer = "ensemble":   L = KL(max_i σ(C(z; w_i)) ‖ σ(S(z; w)))

Nothing is averaged: w never sees data, and knows what the noise told it.

Deviations, with their switches:
- The maximum of distributions is none; we divide it by its sum (``noise.max-norm``).
- How the frozen teacher normalises is not said. Its running statistics are those of no data, so it
  uses the batch's (``teacher-bn``); dropout is off.
- In round 1 the teacher is the untrained w, as printed.
- The paper prints the arguments of KL in two orders; ours is always KL(teacher ‖ student).
- No setting is given; batches, epochs and rates of the distillation are FedORION's. w sees no data,
  so its running statistics mean nothing: with networks that have BatchNorm set
  ``score.bn = "recalibrated"``, with which w also works as saved, or ``"batch"`` (transductive), as
  in the paper's experiments here.
"""

from typing import Literal, final

from common import protocol
from common.config import MethodOptions
from common.protocol import Model as Down
from common.records import StateDict


@final
class Options(MethodOptions):
    leaks = "clients' own models, whole"
    uses = ("noise",)

    transfer: Literal["combine", "ensemble"] = "combine"
    """Every client's divergence on its own, or the divergence from their ensemble."""
    teacher_bn: Literal["batch", "running"] = "batch"
    """BatchNorm of the server's model while it teaches a client."""


@final
class Up(protocol.Up):
    local: StateDict  #: w_i
