"""FedNTD: federated averaging that distils the global model's predictions of not-true classes.

Lee et al., "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning",
NeurIPS 2022, equations 2 and 3.

FedNTD uses FedAvg's messages and server half, but client k minimises

    CE(z, y) + β τ² KL(σ_τ(z_g without entry y) ‖ σ_τ(z without entry y))

with z = f(w_k; x). z_g = f(w; x) are the logits of the received model, in evaluation mode and
without gradient. The term does not depend on the logit of the label. β = 0 is FedAvg, and with two
classes the term is 0.

Deviations: none. The authors' settings are SGD 0.01 with ``train.lr-decay = 0.99``, momentum 0.9,
weight decay 1e-5, 5 epochs of batches of 50. The default of τ is 3 in their class and 1 in their
configuration.
"""

from typing import final

from common.methods.fedavg import Copying, Reply, Request
from common.settings.section import NonNegative, Positive

SERVER = "fedavg"


@final
class Options(Copying):
    objectives = ("classes", "next-token")
    classes_only = "its loss leaves out the true class"

    beta: NonNegative = 1.0
    """β, the weight of the distillation."""
    temperature: Positive = 1.0
    """τ of both softmaxes."""
