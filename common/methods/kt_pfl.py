"""KT-pFL: FedMD with learnt mixtures of the clients' predictions as targets.

Zhang, Guo, Ma, Wang, Xu, Wu, "Parameterized Knowledge Transfer for Personalized Federated
Learning", NeurIPS 2021. Details missing in the paper follow the released code (cugzj/KT-pFL).

KT-pFL uses FedMD's messages and client half: a client stores θ_k, sends predictions for A_t, and
digests and trains in the second exchange. The server stores the knowledge coefficients c [N, N],
one row for each client, initially 1/N. Round t, with σ_T(z) = softmax(z/T):

    up:      p_k = σ_T(f(θ_k; A_t))
    server:  for each k ∈ S_t: c_k ← σ(``c-scale`` (c_k − r g)),
             g = ∂/∂c_k [MSE(p_k, Σ_j c_kj p_j) + ρ MSE(c_k, 1/N)]
    down:    Σ_j c_kj p_j, to client k
    digest:  ``public.epochs`` epochs of KL(Σ_j c_kj p_j ‖ σ_T(f(θ_k; A_t))), without a factor T²
    revisit: E epochs of CE on the client's own samples

The sums include j = k. MSE is the mean over samples and classes, or over clients. The search for
the step r starts with r = 1 and m = Σ_j |g_j|/N. It repeats five times: if m > 0.01, both are
divided by 5; then, if m < 0.01, both are multiplied by 5.

Under partial participation j runs over S_t and N is |S_t|. The entries of c_k for S_t are divided
by their sum; the learnt entries are multiplied by the same sum. In the released code all clients
take part in every round.

``c-scale = 0`` keeps the mixtures uniform, which is FedMD with ``align = "kl"`` (at T = 1 and
``kl = "batchmean"``, to the bit). θ_k is scored, as in FedMD.

Released settings: T = 10, ρ = 0.7; A_t of 5000 (500 to 4000 in a sweep), digested once in batches
of 256; SGD at 0.02 without momentum, also for [train], in batches of 16; one first epoch; E = 1 in
round 1, one more in each further round, at most 10 or 20.

Membership: c has a row and a column for every client of the roster; those of absent clients do not
change. The row of a client that lost its model becomes 1/N.

Deviations, with their switches:
- KL is divided by C too, as in the released code (``kl = "mean"``), which makes it weak.
  ``"batchmean"`` is the mean over samples, as in the formula.
- E grows by one in each round up to ``train.epochs`` (``grow``), as in the released code; the paper
  has a fixed E.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
from pydantic import Field
from torch import Tensor

from common.methods.fedmd import (
    ConsensusReply,
    ConsensusRequest,
    PredictionExchange,
    Reply,
    Request,
)
from common.objectives import ONE_CLASS, Objective
from common.settings.config import Value
from common.settings.marks import Mark
from common.settings.section import NonNegative, Positive

CLIENT = "fedmd"
GRADIENT = 0.01
"""Target of the step search for the mean absolute gradient."""


@final
class Options(PredictionExchange):
    facts = PredictionExchange.facts.but(
        leaves="class probabilities at temperature T for the round's public images",
        infers="the same as with `dl-sh`, without confidences; and the server learns which "
        "clients resemble one another. A client gets a mixture of its own",
    )

    objectives = ("classes", "labels")
    leaks = "predictions about public images"
    auto: ClassVar[Mapping[str, Value]] = {
        "public.lr": 0.02,
        "public.subset": 5000,
        "public.epochs": 1,
        "public.batch-size": 256,
    }

    first_epochs: Annotated[int, Field(ge=0), Mark.CLIENT_EPOCHS] = 1
    """Epochs on the client's own samples before its first round."""
    temperature: Positive = 10.0
    """T of the softmax on both sides."""
    rho: NonNegative = 0.7
    """ρ, the weight of the term that pulls the coefficients towards 1/N."""
    c_scale: NonNegative = 5.0
    """Factor of the coefficients before the softmax over clients; 0: they stay 1/N."""
    kl: Literal["mean", "batchmean"] = "mean"
    """Divisor of KL: samples and classes, as in the released code, or samples only."""
    grow: bool = True
    """Whether round t has min(t, ``train.epochs``) epochs on the client's samples, as in the
    released code; false: always ``train.epochs``."""

    @property
    def probabilities(self) -> bool:
        return True

    def speak(self, z: Tensor, learnt: Objective = ONE_CLASS) -> Tensor:
        return learnt.shares(z, self.temperature)

    def distance(self, z: Tensor, target: Tensor, learnt: Objective = ONE_CLASS) -> Tensor:
        divergence = learnt.from_shares(z, target, self.temperature)
        by_class = self.kl == "mean" and learnt.one_each  # of labels it is a mean already
        return divergence / z.shape[1] if by_class else divergence

    def private_epochs(self, t: int, epochs: int) -> int:
        return min(t, epochs) if self.grow else epochs

    def learnt(self, c: Tensor, p: Tensor, k: int) -> Tensor:
        """Return client k's new coefficients [N] from predictions p [N, samples · classes].

        ``c`` [N] and the result sum to 1.
        """
        g = 2 * (p @ (c @ p - p[k])) / p.shape[1] + 2 * self.rho * (c - 1 / len(c)) / len(c)
        return torch.softmax(self.c_scale * (c - step(float(g.abs().mean())) * g), dim=0)


def step(m: float) -> float:
    """Return r for a mean absolute gradient m ≥ 0 of the coefficients."""
    r = 1.0
    for _ in range(5):
        if m > GRADIENT:
            m, r = m / 5, r / 5
        if m < GRADIENT:
            m, r = m * 5, r * 5
    return r
