"""DepthFL: sub-networks of different depths whose exits learn from one another.

Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients", ICLR 2023. Details
missing in the paper follow the first author's code for Flower. FedDyn: Acar et al., "Federated
Learning Based on Dynamic Regularization", ICLR 2021.

Client k has depth d_k: the stem, stages and exits 1 … d_k of the whole network, ``resnet18-exits2``
for d_k = 2 (``common/models/exits.py``). This architecture is the client's entry in the fleet or
its node's ``model``. z_i are the logits of exit i. Round t: the server sends every selected client
its part of w, and the client minimises

    Σ_i [CE(z_i, y) + r_t / (d − 1) Σ_{j≠i} KL(σ(z_j) ‖ σ(z_i))] − ⟨g_k, w_k⟩ + α/2 ‖w_k − w‖²

with z_j without gradient, r_t = exp(−5 (1 − min(t − 1, R) / R)²) and R = ``ramp``. Then it sets
g_k ← g_k − α (w_k − w); g_k starts at 0. With N clients in all, the server sets for every entry e:

    m_e ← mean of w_k,e over the clients of S_t that have e
    h_e ← h_e − α/N Σ_k (w_k,e − w_e) over the same clients,   w_e ← m_e − h_e / α

This holds for parameters. Buffers become m_e, and entries that no client has stay unchanged.
``feddyn = false``: there are no g_k and h, and w_e ← m_e. Means are uniform unless
``average.weights = "samples"``.

h is the mean of the g_k that the server has counted. The request therefore names the client's last
accepted round, and the client continues from the g_k of exactly that round, as in SCAFFOLD.

The run's accuracy is computed from the mean of the logits of the deepest network's exits. Each exit
is scored too (``exit1`` …), and a client scores the network of its own depth.

A client transfers only its part of the network: fewer bytes than FedAvg with the deepest network.

Membership: h keeps the share of a client that leaves, and N is the roster. If a client lost its
g_k, the server sets h and all g_k to 0, because it has only their mean.

Deviations:
- With ``exits = "last"`` and ``distil = false`` only the deepest exit of a client learns. The
  released code calls this InclusiveFL without momentum, with a head for each depth.
- The released code adds 10⁻⁷ to the teacher's probabilities; this implementation does not.
- For images with odd sides, a gate is interpolated to its stage's size. Exits that are a single
  linear layer are architectures too: ``resnet18-linear2``.
- The cnn family (ours) keeps the image size after its first stage; exits halve it at every missing
  stage.
"""

import math
from collections.abc import Sequence
from typing import Literal, final

from common import models
from common.exchange import protocol
from common.exchange.protocol import ModelReply as Reply
from common.exchange.protocol import Round
from common.methods.fedavg import FOR_PARTS, Averaging
from common.settings.config import Config, Required, not_allowed
from common.settings.section import AtLeastOne, Positive
from common.training.task import Task


@final
class Options(Averaging):
    facts = Averaging.facts.but(
        down="stem, stages and exits up to the client's depth",
        up="stem, stages and exits up to the client's depth",
        kept="the linear term g_k",
        sends="its part of a network",
        leaves="the same as `fedavg`, of the part of the network that the client has; g_k stays "
        "with the client",
        infers="the same as with `fedavg`. The deepest layers are the mean of the few clients "
        "that have them. The server keeps of each client the last round whose reply it accepted, "
        "and tells it to that client alone",
        whole="the deepest network, and each exit",
        networks="parts",
    )

    leaks = "parts that few clients may share"
    auto = {"average.weights": "uniform"}
    requires = {
        "average.robust": Required(*FOR_PARTS, why=": it compares whole models of one architecture")
    }
    projects = False

    exits: Literal["all", "last"] = "all"
    """Exits that learn: all exits of the client, or only the deepest."""
    distil: bool = True
    """Whether exits learn from one another."""
    ramp: AtLeastOne = 300
    """R, rounds until this distillation has its full weight."""
    feddyn: bool = True
    """Whether dynamic regularisation is on: each client stores g_k, the server stores h."""
    alpha: Positive = 0.1
    """α of the dynamic regularisation."""

    def weight(self, t: int) -> float:
        """Return r_t in (0, 1], or 0 without distillation."""
        past = min(t - 1, self.ramp) / self.ramp
        return math.exp(-5 * (1 - past) ** 2) if self.distil else 0.0

    def check(self, config: Config) -> None:
        super().check(config)
        if self.feddyn and config.average.robust != "none":
            why = "depthfl.feddyn = true: h is the mean of the clients' g_k"
            raise not_allowed("average.robust", config.average.robust, why, "none")

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        deepest(specs)


def deepest(specs: Sequence[str]) -> str:
    """Return the deepest of several architectures cut from the same network with exits.

    Raises a one-line ``ValueError`` for an architecture without exits or from another network.
    """
    for spec in specs:
        if not models.exits(spec)[1]:
            like = "it should be like resnet18-exits2"
            raise ValueError(f"model {spec!r} has no exits, which depthfl needs; {like}")
        if models.exits(spec)[0] != models.exits(specs[0])[0]:
            raise ValueError(f"models {specs[0]!r} and {spec!r} are not cut from one network")
    return max(specs, key=lambda spec: models.exits(spec)[1])


@final
class Request(protocol.ModelRequest, kind="depthfl.Down"):
    """Request with ``w``, the client's part of the network."""

    accepted: Round  #: round of this client's last reply that the server counted into h; 0: none
