"""FedPer: federated averaging of the base, with a private head for each client.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers", 2019.

The network is a shared base φ and a private head h_k, its last ``personal`` layers. Round t: the
server sends φ; client k trains φ_k from φ and its own h_k together on cross-entropy, stores h_k and
sends φ_k. The server sets

    φ ← Σ_{k∈S_t} p_k φ_k

All clients train the global architecture, or under ``average.across = "same"`` their own one, with
one φ for each. h_k starts from client k's own draw. A client continues from its h_k of the newest
round before t, so a lost reply changes nothing else. Bytes are those of FedAvg without the head's.

There is no global model. Each client scores the newest φ with its own h_k on its own test share,
also if it has never trained. The run's file of the model has φ.

``personal = 0`` shares everything and is FedAvg, except that clients score. With ``personal`` from
the number of layers on nothing is shared, which is ``local`` with the same architecture.

Deviations:
- The paper counts personal layers in blocks of a network. Here a layer is a module with weights and
  the normalisation after it (``common/models/parts.py``).
- p_k ∝ n_k by default, as in PFLlib and in FedRep's repository for its text data; that repository
  has uniform weights for CIFAR (``average.weights = "uniform"``).
- BatchNorm statistics of the base travel with it. ``share-statistics = false`` keeps them private,
  as in PFLlib, which averages parameters only.
- The authors released no code.
"""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, final

from pydantic import Field

from common.exchange.protocol import ModelReply as Reply
from common.exchange.protocol import ModelRequest as Request
from common.methods.fedavg import PredictorPart
from common.models import parts
from common.models.classifier import Classifier
from common.settings.config import EVERY
from common.techniques.features import check_untied
from common.training.task import Task, global_spec

__all__ = ["Options", "PartlyShared", "Reply", "Request"]


class PartlyShared(PredictorPart, ABC):
    """Options of methods that average one part of a network and keep the rest at the clients."""

    uses: ClassVar[tuple[str, ...]] = ("average", "finetune", "secure")
    objectives = EVERY

    schemes = ("none", "same")

    @abstractmethod
    def private(self, net: Classifier) -> frozenset[str]:
        """Return the state-dict entries of ``net`` that a client keeps and never sends."""

    @final
    def shared(self, net: Classifier) -> list[str]:
        """Return the state-dict entries of ``net`` that travel and are averaged, in its order."""
        private = self.private(net)
        return [name for name in net.state_dict() if name not in private]

    def warning(self, net: Classifier) -> str:
        """Return a line for the log if the method has no effect on ``net``; empty if it has."""
        return ""


class PrivateHead(PartlyShared, ABC):
    """Options of methods whose clients keep the last layers."""

    facts = PredictorPart.facts.but(
        down="the base, with its BatchNorm statistics unless `share-statistics = false`",
        up="the base, with its BatchNorm statistics unless `share-statistics = false`",
        kept="the head: the last `personal` layers",
        sends="a network without head",
        leaves="the base of the trained network with its BatchNorm statistics (`share-statistics "
        "= false`: without); the head stays with the client",
        infers="the same as with `fedavg`, of the base alone: no update of the last layer, from "
        "which class proportions are read directly",
        own="the newest base with the own head",
    )

    personal: Annotated[int, Field(ge=0)] = 1
    """Number of last layers that each client keeps; 1: the head."""
    share_statistics: bool = True
    """Average BatchNorm's statistics of the base; otherwise each client keeps its own."""

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        own = task.config.average.across == "same"
        if self.personal:
            check_untied(task, specs if own else [global_spec(task)])

    @final
    def private(self, net: Classifier) -> frozenset[str]:
        head = parts.last(net, self.personal)
        return head if self.share_statistics else head | parts.buffers(net)


@final
class Options(PrivateHead):
    """Options of FedPer."""
