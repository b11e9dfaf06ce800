"""FedNTD: federated averaging whose clients keep what the global model says of other classes.

Lee et al., "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning",
NeurIPS 2022, equations 2 and 3.

As FedAvg (its messages and its server half), but client k minimises

    CE(z, y) + β τ² KL(σ_τ(z_g without entry y) ‖ σ_τ(z without entry y))

with z = f(w_k; x) and z_g = f(w; x) of the received model, in evaluation mode and without gradient.
The term says nothing about the label's own logit. β = 0 is FedAvg, and with two classes the term
is 0.

Deviations: none. The authors' settings are SGD 0.01 with ``train.lr-decay = 0.99``, momentum 0.9,
weight decay 1e-5, 5 epochs of batches of 50; their class' own default of τ is 3, their
configuration's 1.
"""

from typing import final

from common.methods.fedavg import Copying, Down, Up
from common.section import NonNegative, Positive

SERVER = "fedavg"


@final
class Options(Copying):
    beta: NonNegative = 1.0
    """β, the weight of the distillation."""
    temperature: Positive = 1.0
    """τ of both softmaxes."""
