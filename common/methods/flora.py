"""FLoRA: low-rank adapters of any rank that are merged into the base after every round.

Wang, Shen, He, Sun, Wang, Lyu, Li, "FLoRA: Federated Fine-Tuning Large Language Models with
Heterogeneous Low-Rank Adaptations", NeurIPS 2024, section 3.

Client k has the frozen network W and new adapters of rank r_k in each round: A_k is random, and
B_k = 0. Round t: the server sends the update ΔW of all rounds; client k trains both factors on
W + ΔW + s_k B_k A_k and sends them. The server stacks them, which is the sum of the products:

    ΔW ← ΔW + Σ_{k∈S_t} p_k s_k B_k A_k

so that the mean is exact for any ranks. The head for classes is trained whole and has FedAvg's
mean. The run's model is the base with ΔW, a dense matrix for each layer.

Deviations:
- The server sends ΔW, as many numbers as the layer, 4 o i bytes. The paper sends the stack of all
  clients' factors, which are fewer numbers where Σ r_k (o + i) < o i, but show every client the
  updates of all others, and must be sent again to a client that missed a round.
- The released code writes the rank and α of the default ranks into the stacked adapter, which fits
  no others, and its clients are copies of the server's merged model.
"""

from typing import final

from common.methods.fedavg import Averaging
from common.methods.fedavg import Reply as Reply
from common.methods.fedavg import Request as Request
from common.settings.config import EVERY, Required
from common.techniques.adapters import check_adapters
from common.training.task import Task


class DenseUpdate(Averaging):
    """Options of methods whose server computes the mean update of adapters of several ranks."""

    facts = Averaging.facts.but(
        up="A_k, B_k and the head for classes",
        sends="adapters",
        leaves="the trained adapters, and the head for classes",
        infers="the same as with `fedavg`: an update of low rank tells the same of the samples",
        networks="parts",
        asynchronous="together",
    )

    uses = ("average",)
    objectives = EVERY
    dense = True
    leaks = "factors, whose products are averaged"
    requires = {
        "average.robust": Required("none", why=", which averages products of factors"),
        "average.server-optimizer": Required("none", why=", which averages products of factors"),
        "oca.aggregate": Required("off", why=", which averages products of factors"),
        "global-model": Required("smallest", why=", whose server has the base with dense updates"),
    }

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        check_adapters(task, specs, mixed=True)
        super().check_fleet(task, specs)


@final
class Options(DenseUpdate):
    """Options of FLoRA."""

    facts = DenseUpdate.facts.but(
        down="ΔW of all rounds, and the head for classes", whole="the base with ΔW"
    )
