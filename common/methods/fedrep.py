"""FedRep: a shared representation, with heads that clients train first.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized
Federated Learning", ICML 2021, Algorithm 1.

FedRep has FedPer's messages, server half and scores (``common/methods/fedper.py``). In a round
client k trains in two phases on cross-entropy: first its head h_k for ``head-epochs`` epochs with
the received φ frozen, then φ_k for ``body-epochs`` epochs with h_k frozen. A phase of 0 epochs is
left out. With ``train.steps`` a phase takes that many batches instead of its epochs. The method
does not read ``train.epochs``.

The paper's final round, in which every client trains only its head, is ``finetune.epochs`` with
``finetune.layers = "head"``: it changes no state and is scored beside the regular model.

Deviations:
- The defaults, 10 and 5 epochs, are those of most of the authors' scripts; they use one body epoch
  for CIFAR-10 with 2 classes at each of 100 clients. PFLlib's are 1 and 1.
- The authors' code has one optimiser for both phases. Under torch before 2 its frozen part still
  moves by momentum and weight decay. Here each phase has a new optimiser of its part alone.
- The authors' networks have no BatchNorm. As in PFLlib, layers with BatchNorm are in train mode in
  both phases, so that the statistics of the base move while its parameters are frozen.
  ``freeze-statistics`` puts the frozen base into evaluation mode in the first phase.
- The authors have no weight decay on biases, and report the mean of the last ten rounds.
"""

from typing import Annotated, final

from pydantic import Field

from common.methods.fedper import PrivateHead, Reply, Request
from common.settings.marks import Mark

__all__ = ["Options", "Reply", "Request"]

SERVER = "fedper"
Epochs = Annotated[int, Field(ge=0, le=100_000), Mark.CLIENT_EPOCHS]


@final
class Options(PrivateHead):
    """Options of FedRep."""

    head_epochs: Epochs = 10
    """Epochs of the head in a round, with the base frozen; 0: none."""
    body_epochs: Epochs = 5
    """Epochs of the base in a round, after that, with the head frozen; 0: none."""
    freeze_statistics: bool = False
    """Keep BatchNorm's statistics of the base unchanged while the head trains."""
