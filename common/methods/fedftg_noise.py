"""Modified FedFTG: federated averaging, then distillation on noise instead of generated images.

"Cost Effective Federated Learning for Heterogeneous Systems", Modified FedFTG; modifies FedFTG
(contract: common/methods/fedftg.py).

The method uses FedProx's messages and client half (μ = 0: FedAvg); all clients train the global
architecture. Server, with K participants:

    δw = Σ_i (w_i − w)        w ← w + η δw,    η = ``aggregate-lr`` / K
    L  = 1/K Σ_i KL(C(z; w_i) → S(z; w))       w ← w − η_s ∇L    on noise z ~ N(0, 1)

KL(a → b) is KL(softmax a ‖ softmax b); all networks use the statistics of the batch.

Deviations, with their switches:
- The paper gives no η. η = 1/K makes w the mean of the w_i (``aggregate-lr = 1``). Under
  ``average.weights = "samples"`` clients are weighted by their samples instead.
- The paper writes CE(σ(C), y); this implementation computes CE on logits.
- The paper gives no settings; batches, epochs and rates of the distillation are FedORION's.
- In asynchronous rounds, which the paper does not have, a teacher is the model that a client
  trained, of whatever version, and its weight does not depend on its age.
"""

from typing import final

from common.methods.fedavg import Averaging, Reply, Request
from common.settings.config import NO_NOISE
from common.settings.section import NonNegative, Positive

CLIENT = "fedprox"


@final
class Options(Averaging):
    facts = Averaging.facts.but(asynchronous="training")
    leaks = "single clients' models that the server distils"
    no_texts = NO_NOISE

    uses = ("average", "oca", "finetune", "noise")
    auto = {"average.weights": "uniform"}

    mu: NonNegative = 0.0
    """μ, the weight of the clients' proximal term; 0: FedAvg's clients."""
    aggregate_lr: Positive = 1.0
    """η K, the server's step from w towards the clients' mean; 1: w becomes the mean."""
