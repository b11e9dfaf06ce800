"""Ditto: a personal model for each client, pulled towards the global model.

Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML
2021, Algorithm 1.

The global model w is FedAvg's, bit for bit: messages, server half and the client's training of w_k.
Client k also keeps a personal model v_k and, in a round in which it takes part, trains it on

    CE(f(v_k; x), y) + λ/2 ‖v_k − w‖²

from v_k of its last round, on the same batches, with the same optimiser settings. w is the model as
received. v_k starts from the initial w, also at a client that takes part later than the others. The
term covers parameters; BatchNorm statistics of v_k are its own. v_k never leaves the client.
λ = 0 gives ``local`` from the initial w; with large λ, v_k follows w.

Clients score v_k on their own test share, and w beside it; the server scores w.

Deviations:
- The authors' code makes a step of v_k, then one of w_k, on each batch. As w is fixed in a round,
  training v_k after w_k gives the same result. ``epochs`` gives v_k another number of epochs, as in
  PFLlib.
- The authors select clients with probability ∝ n_k and weight them equally. Here, as in FedAvg,
  selection is uniform and p_k ∝ n_k (``average.weights``).
- λ = 1 as in the authors' scripts. PFLlib's default is 0, which is local training. The authors'
  choice of λ for each step or client on validation samples is not included.
"""

from typing import Annotated, final

from pydantic import Field

from common.methods.fedavg import AVERAGED, Averaging, Reply, Request
from common.settings.config import EVERY
from common.settings.marks import Mark
from common.settings.section import NonNegative

__all__ = ["Options", "Reply", "Request"]

SERVER = "fedavg"


@final
class Options(Averaging):
    """Options of Ditto."""

    objectives = EVERY

    facts = Averaging.facts.but(
        kept="its personal model v_k, whole",
        own="v_k",
        leaves="the same as `fedavg`; the personal model stays with the client",
    )

    uses = AVERAGED
    schemes = ("none", "same")

    lambda_prox: NonNegative = 1.0
    """λ, weight of the distance between a client's personal model and the global one."""
    epochs: Annotated[int, Field(ge=0, le=100_000), Mark.CLIENT_EPOCHS] = 0
    """Epochs of the personal model in a round; 0: ``train.epochs``."""
