"""FML: clients and a small shared network, the meme, learn from each other.

Shen et al., "Federated Mutual Learning", 2020 (arXiv 2006.16765).

Client k stores its own model θ_k of any architecture across rounds, and receives a copy w_k of the
meme w (the global architecture). On each batch (x, y) of its samples, with z_k = f(x; θ_k) and
z = f(x; w_k) before either step and the softmax σ:

    L_k = α CE(z_k, y) + (1 − α) KL(σ(z) ‖ σ(z_k))        θ_k ← θ_k − η ∇L_k
    L   = β CE(z, y)   + (1 − β) KL(σ(z_k) ‖ σ(z))        w_k ← w_k − η ∇L

The client sends only w_k, and the server averages the copies with equal weights:

    w ← 1/|S_t| Σ_{k∈S_t} w_k

α = β = 1 is local training of the θ_k beside FedAvg of the meme. The request (w) and the reply
(w_k) are those of FedAvg: 4 P bytes each way for the P numbers of the meme.

``train.clip`` limits the gradient of each of the two networks separately.

Deviations, with their switches:
- The teacher of each KL term has no gradient. HtFLlib's code stops no gradient, so each network
  also follows the other's loss (``detach = false``).
- KL is the mean over samples. HtFLlib divides it by the number of classes too (``kl = "mean"``).
- HtFLlib clips the gradient norm of each network at 10 (``train.clip = 10``), does not average
  buffers (``average.bn-buffers = false``) and gives the meme the architecture of client 0
  (``global-model``).
"""

from typing import final

from common.exchange.protocol import Share
from common.losses.distillation import Reduction
from common.methods.fedavg import AVERAGED, Averaging, Reply, Request
from common.settings.config import EVERY

SERVER = "fedavg"


@final
class Options(Averaging):
    """Options of FML. Request: the meme w; reply: the trained copy w_k."""

    objectives = EVERY

    facts = Averaging.facts.but(
        down="the small network w",
        up="the small network w",
        kept="θ_k, whole",
        sends="a small network",
        leaves="the trained copy of the meme; the own model stays with the client",
        infers="the same as with `fedavg`, of the meme",
        own="θ_k",
        part="part",
        networks="own",
    )

    uses = AVERAGED
    auto = {"average.weights": "uniform"}

    alpha: Share = 0.5
    """α, the weight of the labels in the loss of the client's own model."""
    beta: Share = 0.5
    """β, the weight of the labels in the loss of the meme."""
    kl: Reduction = "batchmean"
    """Reduction of KL: mean over samples, or over samples and classes."""
    detach: bool = True
    """Whether the teacher of a KL term has no gradient."""
