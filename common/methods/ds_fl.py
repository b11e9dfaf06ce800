"""DS-FL: distillation of the clients' sharpened mean prediction for public images.

Itahara, Nishio, Koda, Morikura, Yamamoto, "Distillation-Based Semi-Supervised Federated Learning
for Communication-Efficient Collaborative Training with Non-IID Private Data", IEEE Transactions on
Mobile Computing, 2023.

The server and all clients have the same unlabelled public images; A_t is the subset of round t
(``public.subset``, 1,000 in the authors' code). Client k keeps its own model θ_k of any
architecture, the server has w. In round t each selected client

    distils the targets of the previous round:  KL(Ŷ_{t−1} ‖ σ(f(θ_k; x))) over A_{t−1}
    trains E epochs of CE on its own samples
    sends p_k = σ(f(θ_k; x)) for x in A_t, [n, C]

and the server, with p̄ the plain mean of the p_k,

    Ŷ_t = σ(p̄ / T)       entropy reduction (ERA): the softmax of probabilities, T = 0.1
    w distils Ŷ_t over A_t as a client does

Each client sends n · C numbers and receives n · C numbers in a round, independent of the networks'
sizes. Server and clients draw the same A_t from the seed, so messages carry no indices.

Rows of Ŷ always sum to 1. With a small T they approach one-hot labels. T = 1 makes them nearly
uniform, because probabilities differ by at most 1.

Deviations, with their switches:
- ``aggregation = "mean"`` takes Ŷ = p̄ (the paper's comparison without ERA).
- ``choose``: A_t is drawn at random, or holds the public samples with the least certain prediction
  of w. Uncertainty is the entropy, or the margin between the two largest probabilities. The request
  then carries the sample indices of A_t and A_{t−1}. Round 1 is always random. FDmeta uses this.
- A client that was not selected in round t − 1 also distils Ŷ_{t−1} when it takes part in round t,
  but no targets of earlier rounds.
- Distillation uses the settings of [public] on clients and server; private training uses [train].
- ``public.learn = false``: no distillation; the clients' models are those of ``local``.
"""

from typing import Literal, final

from jaxtyping import Integer, Shaped
from torch import Tensor

from common.exchange import protocol
from common.exchange.protocol import Round
from common.settings.config import OwnModels
from common.settings.section import Positive
from common.techniques.public_set import OnPublicSet


class Agreeing(OnPublicSet):
    """Options of DS-FL and of the methods that extend it."""

    facts = OwnModels.facts.but(
        asynchronous="together",
        down="predictions for public images",
        up="predictions for public images",
        sends="predictions for public images",
        leaves="class probabilities for the round's public images",
        infers="the same as with `dl-sh`, without confidences. A client that sends false "
        "distributions shifts the mean, which all others learn, by one client's share",
        whole="the server's model",
        public="everybody",
    )

    leaks = "predictions about public images"
    auto = {"public.lr": 0.1, "public.subset": 1000, "public.epochs": 5, "public.batch-size": 50}

    aggregation: Literal["era", "mean"] = "era"
    """Targets from the mean prediction: sharpened by entropy reduction, or unchanged."""
    temperature: Positive = 0.1
    """T of entropy reduction."""
    choose: Literal["random", "entropy", "margin"] = "random"
    """Public samples of a round: random, or those least certain for the server's model."""

    @property
    def mean_predictions(self) -> bool:
        return True


@final
class Options(Agreeing):
    """Options of DS-FL."""

    objectives = ("classes", "labels")


@final
class Request(protocol.Request, kind="ds_fl.Down"):
    """Request with the public samples to predict (``rows``) and the newest targets."""

    rows: Integer[Tensor, " m"] | None  #: indices of A_t; None if A_t is random
    y: Shaped[Tensor, "n C"] | None  #: the newest Ŷ in the wire's dtype; None before the first
    since: Round  #: the round of Ŷ; 0 without Ŷ
    y_rows: Integer[Tensor, " n"] | None  #: indices of the samples of Ŷ; None if they are random


@final
class Reply(protocol.Reply, kind="ds_fl.Up"):
    theta: Shaped[Tensor, "n C"]  #: p_k, probabilities in the wire's dtype
