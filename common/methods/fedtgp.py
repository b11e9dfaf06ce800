"""FedTGP: the server trains the prototypes with an adaptive margin.

Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning", AAAI 2024, Algorithm 1.

The client is that of FedProto; its prototypes come from the trained model in evaluation mode. The
server has a generator of P̂ [C, K]: Embedding(C, K), Linear(K, K), ReLU, Linear(K, K). Round t, with
all pairs (P, y) of the received prototypes and their classes:

    δ = min(max_c gap_c, τ),  gap_c: distance of the clients' mean of class c to the nearest other
    minimise CE(−(‖P − P̂_c‖ + δ · 1[c = y])_c, y) by SGD, for the server's epochs

Clients then receive P̂ of all classes, whether a client has the class or not. With λ = 0 the models
are those of ``local``; with ``server-epochs = 0`` the prototypes are the generator's first ones.

Bytes: as for FedProto.

Deviations:
- δ follows the released code. The paper's text can be read as the largest distance over pairs.
- The paper and its code predict by the nearest prototype (``predict = "prototype"``); the default
  here is the head.
- Distances are √(squares + 10⁻¹²), because the root has no gradient at 0.
- The server's batches have ``train.batch-size`` pairs, as the clients', in HtFLlib and here.
- HtFLlib's tuned values are the defaults: λ = 10, 100 server epochs, rate 0.01, τ = 100.
- In asynchronous rounds, which the paper does not have, the server combines the newest reply of
  every member, whatever its age.
"""

from typing import Annotated, Literal, final

from pydantic import Field

from common.settings.marks import Mark
from common.settings.section import NonNegative, Positive
from common.techniques.class_table import PrototypeOptions

CLIENT = "fedproto"


@final
class Options(PrototypeOptions):
    leaks = "class prototypes of single clients"

    collect: Literal["running", "final"] = "final"
    lambda_term: NonNegative = 10.0
    margin: NonNegative = 100.0
    """τ, largest margin."""
    server_epochs: Annotated[int, Field(ge=0), Mark.SERVER_EPOCHS] = 100
    """Epochs over the received prototypes in a round."""
    server_lr: Positive = 0.01
    """Learning rate of the server's SGD."""
