"""RoLoRA: rounds take turns with the two halves of low-rank adapters.

Chen, Guo, Ju, Dalal, Zhu, Khisti, "Robust Federated Finetuning of LLMs via Alternating Optimization
of LoRA", NeurIPS 2025, Algorithm 1.

Client k has the frozen network W and an adapter in each chosen layer, W + s B A. In odd rounds A is
frozen, in even rounds B:

    t odd:   client k trains B_k from B;   B ← Σ_{k∈S_t} p_k B_k
    t even:  client k trains A_k from A;   A ← Σ_{k∈S_t} p_k A_k

so that s (Σ p_k B_k) A is exactly the mean of the clients' updates. The head for classes is trained
and averaged in every round. ``phase = "B"`` never trains A and is ``ffa-lora``, bit for bit.

A client sends the half that it trained: half of FedIT's bytes. It stores the adapter that it
started from, and receives the half that changed in the last round; a client without a reply in the
last round receives both.

Deviations:
- p_k ∝ n_k by default; the paper has uniform weights (``average.weights = "uniform"``).
- The first round trains B: with B = 0 the gradient of A is 0.
- The authors released no code.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Literal, final

from common.methods.fedavg import FOR_PARTS
from common.methods.fedavg import Reply as Reply
from common.methods.fedavg import Request as Request
from common.methods.fedit import Adapting
from common.models.adapters import A, B
from common.settings.config import Required
from common.settings.options import KRUM


class Halves(Adapting):
    """Options of methods whose rounds train one half of the adapters."""

    uses = ("average", "finetune", "privacy", "secure")
    requires = {
        "average.robust": Required(
            *(*FOR_PARTS, *KRUM, "geometric-median"), why=", which averages halves of adapters"
        ),
        "oca.aggregate": Required("off", why=", which averages halves of adapters"),
    }

    @property
    @abstractmethod
    def turns(self) -> bool:
        """Whether rounds take turns; else all of them train B."""

    @final
    def trained(self, names: Iterable[str], t: int) -> list[str]:
        """Return those of the ``names`` of a network's entries that clients train in round t."""
        frozen = A if t % 2 or not self.turns else B
        return [name for name in names if not name.endswith(frozen)]

    @final
    def changing(self, names: Iterable[str]) -> list[str]:
        """Return those of the ``names`` that clients train in any round."""
        return list(names) if self.turns else self.trained(names, 1)


@final
class Options(Halves):
    """Options of RoLoRA."""

    facts = Adapting.facts.but(
        down="the half that changed in the last round, A or B, and the head for classes",
        up="the half that was trained, A_k or B_k, and the head for classes",
        kept="the adapter from which it trained",
        sends="a half of an adapter",
        leaves="the trained half of the adapters, and the head for classes",
        asynchronous="turns",
    )

    requires = {
        "average.server-optimizer": Required("none", why=", whose rounds train different entries"),
        "privacy.mode": Required(
            "off", "central", why=": a client's half of the last round would need noise again"
        ),
    }

    phase: Literal["turns", "B"] = "turns"
    """Half of the adapters that a round trains: B and A in turns, or always B (``ffa-lora``)."""

    @property
    def turns(self) -> bool:
        return self.phase == "turns"
