"""InclusiveFL: federated averaging of networks of different depths, one size for each client.

Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous Devices", KDD 2022.

Sizes s_1 < … < s_m are parts of one network, cut by depth. Round t: the server sends every selected
client the network of its size, which the client trains as in FedAvg. The server averages every
layer over the sizes that have it. The last block and the head of a size are averaged only among the
clients of that size. The last blocks of a smaller size also learn from the updates of the next
larger size, from the same block on (momentum distillation, β).

This method is FedAvg under ``average.across = "depth"`` with the settings ``average.own``,
``average.beta`` and ``average.stages``; ``server_app/aggregation/depth.py`` has the equations.
Clients are weighted by their samples, renormalised over the clients that share a layer. With β = 0
and ``average.own = "none"`` it equals ``average.across = "layerwise"``.

The run's accuracy is the mean over the sizes' models, and each of them is logged too.

A client transfers the bytes of FedAvg with the network of its size.

Deviations:
- The paper's networks are the first layers of a Transformer. Here the sizes of a ResNet differ in
  the number of blocks of a stage. Distillation runs within each stage, between parameters of equal
  shape, without shortcuts (``average.stages = "last"``: in the last stage only). The own block of a
  size is the last block of its last stage.
- The released code averages the gradients of a size's clients in each step, and the server has one
  AdamW for each size. Here clients train locally; ``lr-factors`` sets the sizes' learning rates.
- The released code distils nothing: a loop overwrites a value that it should sum. The mix happens
  in the first round only and scales the gradient by 1 − β. This implementation follows the paper.
- The momentum in the released code is that of the previous round, here that of the current round.
"""

from typing import Annotated, final

from common.methods.fedavg import Averaging, Reply, Request
from common.settings.config import EVERY, Config
from common.settings.marks import Mark

SERVER = "fedavg"


@final
class Options(Averaging):
    facts = Averaging.facts.but(
        down="the client's size; head and last block only within a size",
        up="the client's size; head and last block only within a size",
        leaves="the same as `fedavg`, of the network of the client's size",
        infers="the same as with `fedavg`. The layers of one size are the mean of that size's "
        "clients alone, of one client's model if it is the only one",
        whole="each size, and their mean",
        networks="parts",
    )

    leaks = "parts that few clients may share"
    auto = {"average.across": "depth"}
    schemes = ("depth",)

    lr_factors: Annotated[str, Mark.TEXT] = ""
    """Factors of the learning rate for clients of some sizes: ``cnn2=1,cnn4=0.5``."""

    objectives = EVERY

    @property
    def factors(self) -> dict[str, str]:
        """Architectures to their factors, as texts."""
        pairs = (item.partition("=") for item in self.lr_factors.split(",") if item.strip())
        return {spec.strip(): factor.strip() for spec, _, factor in pairs}

    def factor(self, spec: str) -> float:
        """Return the factor of the learning rate at clients of this architecture."""
        return float(self.factors.get(spec, 1))

    def check(self, config: Config) -> None:
        super().check(config)
        for spec, factor in self.factors.items():
            refused = f'inclusivefl.lr-factors = "{self.lr_factors}" is not allowed'
            if spec not in config.brought:
                fleet = ", ".join(config.brought)
                raise ValueError(f"{refused}: {spec!r} is no architecture of the fleet: {fleet}")
            try:
                valid = 0 < float(factor) < 1e6
            except ValueError:
                valid = False
            if not valid:
                raise ValueError(f"{refused}: {factor!r} of {spec} should be a number above 0")
