"""MOON: federated averaging with a contrastive loss towards the global model's features.

Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1.

As FedAvg (its messages and its server half), but client k minimises

    CE(z, y) + μ CE([cos(q, q_g), cos(q, q_p)] / τ, 0)

q, q_g and q_p are the head's inputs for an image: in the trained model, in the received w, and in
the client's w_k after its last round (w in its first round). q_g and q_p have no gradient. In a
client's first round the term is μ log 2 and its gradient 0. μ = 0 is FedAvg with the same networks.

With ``projection = "on"``, this method's default, every network has a projection d – d – 256 before
its head, as in the authors' code. That is another architecture: FedAvg in the same table must be
given it too (``projection = "on"`` there). ``"off"``: q = f(x), the plain network's features.

Deviations, where the paper leaves it open: q_g and q_p are in evaluation mode; one past model is
kept. μ = 1 is the code's, the paper tunes it (5 on CIFAR-10).
"""

from typing import final

from common.methods.fedavg import Copying, Reply, Request
from common.settings.section import NonNegative, Positive

SERVER = "fedavg"


@final
class Options(Copying):
    auto = {"projection": "on"}
    mu: NonNegative = 1.0
    """μ, the weight of the contrastive loss."""
    temperature: Positive = 0.5
    """τ of the cosines."""
