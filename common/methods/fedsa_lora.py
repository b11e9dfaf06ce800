"""FedSA-LoRA: low-rank adapters with one half averaged and the other private.

Guo, Zeng, Wang, Fan, Wang, Qu, "Selective Aggregation for Low-Rank Adaptation in Federated
Learning", ICLR 2025, section 3.

Client k has the frozen network W and an adapter in each chosen layer, W + s B_k A. Round t: the
server sends A; client k trains A_k from A and its own B_k together, stores B_k and its head for
classes, and sends A_k. The server sets

    A ← Σ_{k∈S_t} p_k A_k

It has FedPer's halves, with another private part; a newcomer starts with B_k = 0. There is no
global model: each client scores the newest A with its own B_k and head.

Deviations: p_k ∝ n_k by default.
"""

from typing import final

from common.methods.fedper import PartlyShared
from common.methods.fedper import Reply as Reply
from common.methods.fedper import Request as Request
from common.models import parts
from common.models.adapters import B
from common.models.classifier import Classifier
from common.techniques.adapters import check_adapters
from common.training.task import Task

SERVER = CLIENT = "fedper"


@final
class Options(PartlyShared):
    """Options of FedSA-LoRA."""

    facts = PartlyShared.facts.but(
        down="A",
        up="A_k",
        kept="B_k, and the head for classes",
        sends="a half of an adapter",
        leaves="the trained half A_k of the adapters; B_k and the head stay with the client",
        infers="the same as with `fedavg`, of the inputs of layers: A says which directions of "
        "features the client's samples use",
        own="the newest A with the own B_k and head",
    )

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        check_adapters(task, specs)
        super().check_fleet(task, specs)

    def private(self, net: Classifier) -> frozenset[str]:
        return frozenset(n for n in net.state_dict() if n.endswith(B)) | parts.last(net)
