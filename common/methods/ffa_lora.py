"""FFA-LoRA: low-rank adapters with a frozen random half.

Sun, Li, Li, Ding, "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024, section 4.

Client k has the frozen network W and an adapter in each chosen layer, W + s B A_0. Every
participant draws A_0 once from the run's seed; it is never trained and never sent. Round t: the
server sends B, client k trains B_k from it and sends B_k, and the server sets

    B ← Σ_{k∈S_t} p_k B_k

so that s (Σ p_k B_k) A_0 is exactly the mean of the clients' updates, and noise on B enters the
model linearly ([privacy]). The head for classes is trained and averaged too. The bytes are half of
FedIT's. It has RoLoRA's halves, and is ``rolora`` with ``phase = "B"``, bit for bit.

Deviations: the authors released no code; the head is trained as in the code of FedSA-LoRA's
authors, which has this method.
"""

from typing import final

from common.methods.fedit import Adapting
from common.methods.rolora import Halves
from common.methods.rolora import Reply as Reply
from common.methods.rolora import Request as Request

SERVER = CLIENT = "rolora"


@final
class Options(Halves):
    """Options of FFA-LoRA."""

    facts = Adapting.facts.but(
        down="B and the head for classes",
        up="B_k and the head for classes",
        sends="a half of an adapter",
        leaves="the trained half B_k of the adapters, and the head for classes",
    )

    @property
    def turns(self) -> bool:
        return False
