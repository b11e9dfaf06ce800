"""LG-FedAvg: private feature extractors of any architecture under one averaged head.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020 (arXiv 2001.01523), Algorithm 1.

Client k has a private model θ_k: features f_k(x) in R^K and a linear head. Round t:

    client: replaces its head by the server's h, trains all of θ_k on CE(h(f_k(x)), y), and sends
            its trained head h_k
    server: h ← Σ_{k∈S_t} p_k h_k

θ_k is scored with the newest head, which clients receive with the request for scores. All
architectures need the same K: one architecture, or ``feature-dim``. The request (h) and the reply
(h_k) are (K + 1) C numbers for C classes, 4 (K + 1) C bytes each way.

If the clients shared all layers, this would be FedAvg. With one client and its first head at the
server it is local training.

Deviations, with their switches:
- p_k = n_k / Σ n as in the paper and in HtFLlib. The released code gives all clients equal weights
  (``average.weights = "uniform"``).
- The released code starts from a model that FedAvg has trained (``weights`` names a file), and can
  share more of the last layers. Here the head alone is shared, as in HtFLlib, because other layers
  of different architectures do not fit.
- The paper also has self-supervised and adversarial losses for the features; its experiments with
  images use labels only, as here.
"""

from typing import ClassVar, final

from torch import nn

from common.exchange.protocol import ModelReply as Reply
from common.exchange.protocol import ModelRequest as Request
from common.methods.fedavg import PartAveraging
from common.models.classifier import Classifier
from common.settings.config import EVERY
from common.techniques.features import check_heads, check_untied, feature_width
from common.training.task import Task

__all__ = ["Options", "Reply", "Request", "SharedHead"]


class SharedHead(PartAveraging):
    """Options of methods that average heads, whole or in parts, of networks with the same K."""

    facts = PartAveraging.facts.but(kept="θ_k, whole", whole="", part="part", networks="own")

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        check_heads(task, specs)
        check_untied(task, specs)
        feature_width(task, specs)


@final
class Options(SharedHead):
    """Options of LG-FedAvg. Request: the head h; reply: the trained head h_k."""

    uses: ClassVar[tuple[str, ...]] = ("average", "secure")
    objectives = EVERY

    facts = SharedHead.facts.but(
        down="the head",
        up="the head",
        sends="a head",
        leaves="the trained head; the layers below stay with the client",
        infers="the same as with `fedavg`, of the head: its bias and rows tell which classes the "
        "client has many samples of",
        own="the own features with the newest head",
    )

    leaks = "heads without noise"
