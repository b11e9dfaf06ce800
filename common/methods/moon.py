"""MOON: federated averaging with a contrastive loss towards the global model's features.

Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1.

MOON uses FedAvg's messages and server half, but client k minimises

    CE(z, y) + μ CE([cos(q, q_g), cos(q, q_p)] / τ, 0)

q, q_g and q_p are inputs of the head for an image: q in the trained model, q_g in the received w,
and q_p in the client's w_k after its last round (w in its first round). q_g and q_p have no
gradient. In a client's first round the term is μ log 2 and its gradient is 0. μ = 0 is FedAvg with
the same networks.

With ``projection = "on"``, the default of this method, every network has a projection d – d – 256
before its head, as in the authors' code. This changes the architecture, so FedAvg in the same table
needs ``projection = "on"`` too. With ``"off"``, q = f(x) are the features of the plain network.

Deviations, in details that the paper does not define: the models of q_g and q_p are in evaluation
mode, and a client stores one past model. The paper tunes μ (5 on CIFAR-10); the code's value is 1.
"""

from typing import final

from common.methods.fedavg import Copying, Reply, Request
from common.settings.config import EVERY
from common.settings.section import NonNegative, Positive

SERVER = "fedavg"


@final
class Options(Copying):
    facts = Copying.facts.but(
        kept="its last w_k",
        leaves="the same as `fedavg`; the past model stays with the client",
    )

    auto = {"projection": "on"}
    mu: NonNegative = 1.0
    """μ, the weight of the contrastive loss."""

    objectives = EVERY
    temperature: Positive = 0.5
    """τ of the cosines."""
