"""FedIT: federated averaging of low-rank adapters of one frozen network.

Zhang, Vahidian, Kuo, Li, Zhang, Yu, Wang, Chen, "Towards Building the Federated GPT: Federated
Instruction Tuning", ICASSP 2024, section 3.

Client k has the frozen network W and an adapter in each chosen layer, W + s B A (``adapters.py``).
Round t: the server sends A and B; client k trains both from there on the task's loss and sends A_k
and B_k. The server sets

    A ← Σ_{k∈S_t} p_k A_k,   B ← Σ_{k∈S_t} p_k B_k

FedIT has FedAvg's halves. Only adapters travel, and the head for classes, which is trained whole
and averaged too: 4 r (o + i) bytes for a layer of o × i numbers, each way.

s (Σ p_k B_k)(Σ p_k A_k) is not the mean of the clients' updates, Σ p_k s B_k A_k: products of
different clients' factors are in it. They vanish where all A_k or all B_k agree.

With one client it is ``local``, and with A frozen it is ``ffa-lora``.

Deviations:
- The released code (Shepherd) loads the base in 8 bits, trains on prompts too and draws one client
  of ten in a round; see ``per-round`` and [train].
- The initial A is drawn from the run's seed, equal for all clients.
"""

from typing import ClassVar, final

from common.methods.fedavg import AVERAGED, Averaging
from common.methods.fedavg import Reply as Reply
from common.methods.fedavg import Request as Request
from common.settings.config import EVERY
from common.techniques.adapters import check_adapters
from common.training.task import Task

SERVER = CLIENT = "fedavg"


class Adapting(Averaging):
    """Options of methods that average adapters of one rank."""

    facts = Averaging.facts.but(
        down="A, B and the head for classes",
        up="A_k, B_k and the head for classes",
        sends="adapters",
        leaves="the trained adapters, and the head for classes",
        infers="the same as with `fedavg`: an update of low rank tells the same of the samples",
        whole="the base with the mean adapter",
    )

    uses: ClassVar[tuple[str, ...]] = AVERAGED
    objectives = EVERY

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        check_adapters(task, specs)
        super().check_fleet(task, specs)


@final
class Options(Adapting):
    """Options of FedIT."""
