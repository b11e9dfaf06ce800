"""FedKD: a client's mentor and a shared mentee teach each other; updates travel compressed.

Wu, Wu, Lyu, Huang, Xie, "Communication-efficient federated learning via knowledge distillation",
Nature Communications 2022.

Client k stores its own model θ_k, the mentor, of any architecture, and a matrix W_k [d_k, d]. The
mentee w is the global architecture, with d features. Both networks give features and logits of a
batch, f_k, z_k = θ_k(x) and f, z = w_k(x) before either step. With q = CE(z_k, y) + CE(z, y) and
the softmax σ:

    L_k = CE(z_k, y) + λ [KL(σ(z) ‖ σ(z_k)) + mean (f_k − W_k f)²] / q       θ_k ← θ_k − η ∇L_k
    L   = CE(z, y)   + λ [KL(σ(z_k) ‖ σ(z)) + mean (f_k − W_k f)²] / q       w_k, W_k likewise

λ = 1 in the paper. With λ = 0 the mentors are trained alone, and the mentees by FedAvg.

The client sends the compressed update w_k − w. The server averages the updates with equal weights,
compresses the mean and adds it to w; the next request has the same compressed mean, so that server
and clients continue from the same w:

    w ← w + C(1/|S_t| Σ_{k∈S_t} C(w_k − w))

C keeps of each matrix [m, n] its r largest singular values, r the smallest number with
s_1² + … + s_r² ≥ T Σ s_i². T rises linearly over the rounds from ``energy-start`` to
``energy-end``. A convolution is the matrix [out, in · height · width]. The factors have
r (m + n + 1) numbers of 4 bytes. A matrix for which that is no less than m n, a vector and
BatchNorm's statistics are sent whole. A client whose last reply is not one of the previous round
receives w itself.

``train.clip`` limits the gradients of θ_k, w_k and W_k separately.

Membership: a newcomer, and a client that lost its state, receives the whole w.

Deviations, with their switches:
- q and the other network's outputs have no gradient, so W_k learns from L only. The released code
  and HtFLlib stop no gradient (``detach = false``).
- KL is the mean over samples. HtFLlib divides it by the number of classes too (``kl = "mean"``).
- The paper's transformers also compare attention maps and all hidden layers. Here the hidden state
  is the input of the head, as in HtFLlib. W_k also maps between different numbers of features.
- The released code's T in round t of R is start + t/R (end − start), so that round 1 is above the
  start; here round 1 has the start and round R the end. It multiplies the left vectors by the
  vector of singular values, not by its diagonal matrix, and does not send embeddings.
- HtFLlib compresses weights instead of updates, and a convolution over its 3 × 3 only. Both codes
  search ranks below the full one only, and send an empty matrix where all singular values are
  needed. Neither is reproduced.
- HtFLlib clips each gradient norm at 10 (``train.clip = 10``) and averages no buffers
  (``average.bn-buffers = false``).
"""

from typing import final

from common.exchange import protocol
from common.exchange.protocol import Round
from common.exchange.records import StateDict
from common.losses.distillation import Reduction
from common.methods.fedavg import PartAveraging
from common.settings.config import EVERY
from common.settings.section import Fraction, NonNegative
from common.techniques.low_rank import Compressed


@final
class Options(PartAveraging):
    facts = PartAveraging.facts.but(
        down="low-rank factors of the updates of w, or w itself",
        up="low-rank factors of the updates of w, or w itself",
        kept="θ_k, whole, with W_k; its last w",
        sends="low-rank updates of a small network",
        leaves="the update of the mentee as low-rank factors; the own model and the projection "
        "stay with the client",
        infers="the same as with `fedavg`, of the mentee. Factors leave out small singular "
        "values, which hides nothing reliably. The server keeps which clients replied in the last"
        " round. Factors of too high a rank, or of another shape, are refused",
        own="θ_k",
        part="part",
        networks="own",
    )

    leaks = "compressed updates without noise"
    auto = {"average.weights": "uniform"}

    weight: NonNegative = 1.0
    """λ, the weight of what the two networks learn from each other."""

    objectives = EVERY
    mentee_lr: NonNegative = 0.0
    """Learning rate of the mentee where that of the mentor is train.lr; 0: the same."""
    energy_start: Fraction = 0.95
    """T of the first round, the share of the squared singular values that is sent."""
    energy_end: Fraction = 0.98
    """T of the last round."""
    kl: Reduction = "batchmean"
    """Reduction of KL: mean over samples, or over samples and classes."""
    detach: bool = True
    """Whether q and the other network's outputs have no gradient."""

    def energy(self, t: int, rounds: int) -> float:
        """Return T of round t, 1 ≤ t ≤ ``rounds``."""
        passed = (t - 1) / (rounds - 1) if rounds > 1 else 0.0
        return self.energy_start + passed * (self.energy_end - self.energy_start)


@final
class Request(protocol.Request, kind="fedkd.Down"):
    """Request with the mentee, or with its update since the client's last round."""

    w: StateDict | None  #: w; None if there is an update
    update: Compressed | None  #: the compressed mean of round ``since``; None if there is w
    since: Round  #: round whose mentee the client has stored; 0: w is here


@final
class Reply(protocol.Reply, kind="fedkd.Up"):
    """Reply with the compressed update w_k − w."""

    update: Compressed
