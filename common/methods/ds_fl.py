"""DS-FL: clients agree on public images, and the server sharpens what they agree on.

Itahara, Nishio, Koda, Morikura, Yamamoto, "Distillation-Based Semi-Supervised Federated Learning
for Communication-Efficient Collaborative Training with Non-IID Private Data", IEEE Transactions on
Mobile Computing, 2023.

Everybody holds the same unlabelled public images; A_t are those of round t (``public.subset``,
1,000 in the authors' code). Client k keeps its own model θ_k of any architecture, the server has w.
In round t each selected client

    digests what came of the round before:  KL(Ŷ_{t−1} ‖ σ(f(θ_k; x))) over A_{t−1}
    trains E epochs of CE on its own samples
    sends p_k = σ(f(θ_k; x)) for x in A_t, [n, C]

and the server, with p̄ the plain mean of the p_k,

    Ŷ_t = σ(p̄ / T)       entropy reduction (ERA): the softmax of probabilities, T = 0.1
    w digests Ŷ_t over A_t as a client does

Predictions of n samples travel once each way in a round, whatever the networks' sizes: n · C
numbers up and n · C down for each client. Both sides draw by themselves which samples these are.

Rows of Ŷ always sum to 1. With small T they approach one-hot labels; T = 1 makes them nearly
uniform, since probabilities differ by at most 1.

Deviations, with their switches:
- ``aggregation = "mean"`` takes Ŷ = p̄ (the paper's comparison without ERA).
- ``choose``: A_t by lot, or those public samples about which w is least sure, by the entropy of its
  prediction or by the margin between its two largest probabilities. Their numbers then go down
  with the round, for it and for the one after. The first round draws by lot. This is FDmeta's.
- A client that was not selected in round t − 1 digests Ŷ_{t−1} all the same when it takes part in
  round t, and nothing of earlier rounds.
- Digestion has the settings of [public], for clients and server alike; private training [train]'s.
- ``public.learn = false``: nobody digests; the clients' models are ``local``'s.
"""

from typing import Literal, final

from jaxtyping import Integer, Shaped
from torch import Tensor

from common import protocol
from common.protocol import Round
from common.public_set import OnPublicSet
from common.section import Positive


class Agreeing(OnPublicSet):
    """Options of DS-FL and of the methods that extend it."""

    auto = {"public.lr": 0.1, "public.subset": 1000, "public.epochs": 5, "public.batch-size": 50}

    aggregation: Literal["era", "mean"] = "era"
    """What becomes of the mean prediction: entropy reduction, or nothing."""
    temperature: Positive = 0.1
    """T of entropy reduction."""
    choose: Literal["random", "entropy", "margin"] = "random"
    """The public samples of a round: by lot, or those of which the server's model is least sure."""


@final
class Options(Agreeing):
    """None of its own."""

    leaks = "predictions about public images"


@final
class Down(protocol.Down):
    """``rows`` are the public samples to speak about; ``y``, ``since``, ``y_rows`` the lesson."""

    rows: Integer[Tensor, " m"] | None  #: numbers of A_t; None if it is drawn by lot
    y: Shaped[Tensor, "n C"] | None  #: the newest Ŷ in the wire's dtype; None before there is any
    since: Round  #: the round that Ŷ comes of; 0 without one
    y_rows: Integer[Tensor, " n"] | None  #: the samples it is about; None if drawn by lot in it


@final
class Up(protocol.Up):
    theta: Shaped[Tensor, "n C"]  #: p_k, probabilities in the wire's dtype
