"""InclusiveFL: federated averaging of networks of different depths, one size for each client.

Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous Devices", KDD 2022.

Sizes s_1 < … < s_m are parts of one network, cut by depth. Round t: the server sends every selected
client the network of its size; each trains it as in FedAvg; the server averages every layer over
the sizes that have it, but each size keeps its last block and its head, which it averages among its
own clients. The last blocks of a smaller size also learn from what the next larger size does from
there on (momentum distillation, β). ``server_app/aggregation/depth.py`` has the equations: this
method is FedAvg under ``average.across = "depth"``, whose knobs are ``average.own``,
``average.beta`` and ``average.stages``. Weights are the clients' samples, renormalised over those
that share a layer. β = 0 and nothing of one's own is ``average.across = "layerwise"``.

The run's accuracy is the mean over the sizes' models, each of which is logged too.

A client's bytes are FedAvg's for the network of its size: less than FedAvg's for the largest.

Deviations:
- The paper's networks are the first layers of a Transformer. A ResNet's sizes differ in how many
  blocks a stage has: distillation is within each stage, between parameters of one shape, without
  shortcuts (``average.stages = "last"``: in the last stage alone); a size's own block is the last
  one of its last stage.
- Released code pools a size's clients, takes one averaged gradient for a step, and the server has
  an AdamW for each size. Ours train locally; ``lr-factors`` tells the sizes' learning rates apart.
- In the released code nothing is distilled: a loop overwrites where it should sum, and the mix
  happens in the first round only, where it scales the gradient by 1 − β. We follow the paper.
- The release's momentum is of the last round, ours of this one.
"""

from typing import final

from common.methods.fedavg import Averaging, Reply, Request
from common.settings.config import Config

SERVER = "fedavg"


@final
class Options(Averaging):
    leaks = "parts that few clients may share"
    auto = {"average.across": "depth"}
    schemes = ("depth",)

    lr_factors: str = ""
    """Factors of the learning rate for clients of some sizes: ``cnn2=1,cnn4=0.5``."""

    @property
    def factors(self) -> dict[str, str]:
        pairs = (each.partition("=") for each in self.lr_factors.split(",") if each.strip())
        return {spec.strip(): factor.strip() for spec, _, factor in pairs}

    def factor(self, spec: str) -> float:
        """Return the factor of the learning rate at clients of this architecture."""
        return float(self.factors.get(spec, 1))

    def check(self, config: Config) -> None:
        super().check(config)
        for spec, factor in self.factors.items():
            said = f'inclusivefl.lr-factors = "{self.lr_factors}" is not allowed'
            if spec not in config.brought:
                there = ", ".join(config.brought)
                raise ValueError(f"{said}: {spec!r} is no architecture of the fleet: {there}")
            try:
                good = 0 < float(factor) < 1e6
            except ValueError:
                good = False
            if not good:
                raise ValueError(f"{said}: {factor!r} of {spec} should be a number above 0")
