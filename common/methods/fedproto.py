"""FedProto: clients exchange class prototypes instead of weights.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
Algorithm 1, equations 5-7.

Client k has a private model θ_k of any architecture: features f_k(x) in R^K, logits h_k(f_k(x)).
Round t:

    client: CE(h_k(f_k(x)), y) + λ · mean((f_k(x) − P_y)²)
            and sends the means of f_k(x) by class, [C, K], and which classes it has
    server: P_c ← mean over the clients of this round that have class c

In round 1, and for a class without prototype, there is no second term. With λ = 0 the models are
those of ``local``. All architectures need the same K: one architecture, or ``feature-dim``.

A client's accuracy is that of its head, or of the nearest prototype by mean square distance over
all classes with a prototype (``predict``); both are recorded. Prototypes are sent to be scored
after the server's step, so that the newest ones are used.

Bytes: 4KC + 8C up (prototypes and counts) and 4KC + C down, for each client and round.

Deviations, with their switches:
- The paper weights clients by their samples of the class (``weights = "counts"``). The released
  code and HtFLlib take the plain mean, which is the default; clients then send no counts.
- The released code takes the prototypes from the training steps of the last epoch, HtFLlib of all
  epochs, which is the default here (equal for ``train.epochs`` = 1). ``collect = "final"`` takes
  them from the trained model.
- The released code has λ = 1 and 0.1 on CIFAR-10, HtFLlib's tuned value is 10 (``lambda-term``).
- The paper predicts by the nearest prototype, as HtFLlib does (``predict = "prototype"``); its
  released code scores both. The default here is the head.
- The released code compares with prototypes of the client's own classes only, HtFLlib and this
  method with all.
- In asynchronous rounds, which the paper does not have, the server combines the newest reply of
  every member, whatever its age.
"""

from typing import Literal, final

from common.techniques.class_table import PrototypeOptions, TableReply, TableRequest

__all__ = ["Options", "TableReply", "TableRequest"]


@final
class Options(PrototypeOptions):
    leaks = "class prototypes of single clients"

    weights: Literal["uniform", "counts"] = "uniform"
    """Weights of the clients in a prototype: equal, or by their samples of the class."""

    @property
    def by_counts(self) -> bool:
        return self.weights == "counts"
