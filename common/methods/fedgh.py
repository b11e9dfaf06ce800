"""FedGH: one head for all clients, trained by the server on class means of features.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023,
Algorithm 1.

Client k has a private model θ_k of any architecture: features f_k(x) in R^K and a linear head.
Round t:

    client: replaces its head by the server's h, trains all of θ_k on CE(h(f_k(x)), y), and sends
            the means of f_k(x) by class, of the trained model in evaluation mode
    server: minimises CE(h(P), y) over all received pairs (P, y) by SGD, from the last h

θ_k is scored with the newest head, which clients receive with the request for scores. All
architectures need the same K: one architecture, or ``feature-dim``.

With ``server-epochs = 0`` every client starts every round from the first head.

Bytes: 4KC + 8C up, 4(K + 1)C down, for each client and round.

Deviations:
- The released script steps the last client's optimiser on the server, so that its head never
  learns. The paper and HtFLlib train it, as here.
- In the released script's first round clients keep their own heads, and those of one architecture
  train one network after each other. Here every round begins with the server's head.
- The paper's code takes one pair in a step, HtFLlib ``train.batch-size`` pairs, as here.
- Clients send 1 for each class that they have, no counts; the paper's server does not use them.
- In asynchronous rounds, which the paper does not have, the server combines the newest reply of
  every member, whatever its age.
"""

from typing import Annotated, Literal, final

from pydantic import Field

from common.exchange.protocol import ModelRequest
from common.settings.marks import Mark
from common.settings.section import Positive
from common.techniques.class_table import TableOptions, TableReply

__all__ = ["ModelRequest", "Options", "TableReply"]


@final
class Options(TableOptions):
    facts = TableOptions.facts.but(
        asynchronous="tables",
        down="the head",
        up="means of features by class",
        sends="mean features of its classes",
        leaves="the mean features of each class that it has",
        infers="the same as with `fedproto`",
        own="the own features with the newest head",
    )

    leaks = "class means of single clients' features"

    collect: Literal["running", "final"] = "final"
    server_epochs: Annotated[int, Field(ge=0), Mark.SERVER_EPOCHS] = 1
    """Epochs over the received class means in a round."""
    server_lr: Positive = 0.01
    """Learning rate of the server's SGD."""
