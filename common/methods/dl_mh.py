"""DL-MH: one-shot distillation from clients that have only their own classes; UHC.

"Adaptive Dual-Mode Distillation with Incentive Schemes for Scalable, Heterogeneous Federated
Learning on Non-IID Data", section 3.2, Algorithms 3 and 4.

As DL-SH, but the head of M_i has one node for each of the client's classes d, ascending, and its
labels are numbered by their place in d (Algorithm 3, 2-11). Up: M_i(X_dist) [N, |d|], w_i [N] and
the schema d. The server maps and masks, then goes on as DL-SH (Algorithm 4, 1-11):

    M_i'(x)[d[j]] = M_i(x)[j],  0 for classes not in d
    W_i(x) = exp(w_i(x)/T) / Σ_j exp(w_j(x)/T)                             (6)
    Y_g(x) = Σ_i W_i(x) M_i'(x)

Each row of M_i' sums to 1, so that of Y_g does. If every client has every class, this is DL-SH to
the bit.

Baseline in the same pipeline: UHC (Vongkulbhisal et al., CVPR 2019) instead of the weighted sum,
``ensemble.aggregation = "uhc-ce"`` (cross-entropy, ``ensemble.uhc-steps`` gradient steps of size
``ensemble.uhc-lr``) or ``"uhc-mf"`` (rank-1 factorisation of probabilities, ``ensemble.uhc-steps``
alternations). UHC takes no confidences: run it with ``confidence.kind = "uniform"``. Where no two
clients share a class (NIID-1) the mass between them is not determined by the predictions, and it
must fail.

Deviations: as DL-SH; in addition
- Logits cannot be masked by zeros, so probabilities travel.
- A client of a single class has a head of two nodes, sends the one column of its class and learns
  nothing but its confidence.
"""

from typing import final

from jaxtyping import Shaped
from torch import Tensor

from common import protocol
from common.methods.dl_sh import Distilling, Down
from common.protocol import Count


class Masking(Distilling):
    """Options of methods whose clients have heads for their own classes only."""

    rules = ("weighted_sum", "literal_product", "uhc-ce", "uhc-mf")


@final
class Options(Masking):
    """None of its own."""

    leaks = "predictions about public images"


class Schemed(protocol.Up):
    """What a client with a head of its own sends."""

    theta: Shaped[Tensor, "N d"]  #: M_i(X_dist), probabilities in the wire's dtype
    w: Shaped[Tensor, " N"] | None  #: w_i on the wire; None under confidence.kind = "uniform"
    d: list[Count]  #: schema S_i: the class of each column of theta


@final
class Up(Schemed):
    """Nothing more."""
