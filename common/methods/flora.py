"""FLoRA: low-rank adapters of any rank that are merged into the base after every round.

Wang, Shen, He, Sun, Wang, Lyu, Li, "FLoRA: Federated Fine-Tuning Large Language Models with
Heterogeneous Low-Rank Adaptations", NeurIPS 2024, section 3.

Client k has the frozen network W and new adapters of rank r_k in each round: A_k is random, and
B_k = 0. Round t: the server sends the update ΔW of all rounds; client k trains both factors on
W + ΔW + s_k B_k A_k and sends them. The server stacks them, which is the sum of the products:

    ΔW ← ΔW + Σ_{k∈S_t} p_k s_k B_k A_k

so that the mean is exact for any ranks. The head for classes is trained whole and has FedAvg's
mean. The run's model is the base with ΔW, a dense matrix for each layer.

With ``send = "dense"`` a client receives ΔW, 4 o i bytes for a layer. With ``"stack"``, as in the
paper, it receives the factors of all clients of the last round, p_k s_k B_k and A_k, and adds their
products to the ΔW that it has stored: 4 (o + i) Σ_k r_k bytes. The stack shows every client the
updates of all others. A client without a reply in the last round receives ΔW.

Deviations:
- ΔW is what is sent by default; the paper sends the stack.
- The released code writes the rank and α of the default ranks into the stacked adapter, which fits
  no others, and its clients are copies of the server's merged model.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, final

import torch
from torch import Tensor

from common.exchange import protocol
from common.exchange.records import StateDict
from common.methods.fedavg import Averaging
from common.methods.fedavg import Reply as Reply
from common.models.adapters import W, pairs
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
        asynchronous="products",
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
        down='ΔW of all rounds, and the head for classes (`send = "stack"`: all factors of the '
        "last round)",
        kept='ΔW, with `send = "stack"`',
        whole="the base with ΔW",
    )

    send: Literal["dense", "stack"] = "dense"
    """What the server sends: the update of all rounds, or the clients' factors of the last round,
    which shows every client the updates of all others."""

    @property
    def stacks(self) -> bool:
        return self.send == "stack"


@final
class Request(protocol.ModelRequest, kind="flora.Down"):
    """Request with ΔW of each layer and the head in ``w``, or with the head alone and a stack."""

    stack: list[StateDict] = []
    """p_k s_k B_k and A_k of each client of the last round; empty: ``w`` has ΔW."""


def added(w: Mapping[str, Tensor], stack: Iterable[Mapping[str, Tensor]]) -> StateDict:
    """Return ΔW of each layer in ``w`` plus the products of the factors, summed in float64."""
    sums = {n: value.flatten(1).double() for n, value in w.items() if n.endswith(f".{W}")}
    for factors in stack:
        for layer, a, b in pairs(factors):
            sums[f"{layer}.{W}"] = sums[f"{layer}.{W}"] + b.double() @ a.double()
    return {name: value.to(torch.float32).view(w[name].shape) for name, value in sums.items()}
