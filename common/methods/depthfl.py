"""DepthFL: networks cut at different depths, with a classifier at each, that teach one another.

Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients", ICLR 2023; what the
paper leaves open as in the first author's code for Flower. FedDyn: Acar et al., "Federated Learning
Based on Dynamic Regularization", ICLR 2021.

Client k has depth d_k: stem, stages and exits 1 … d_k of the whole network, ``resnet18-exits2`` for
d_k = 2 (``common/models/exits.py``). It is the client's architecture, in the fleet or as its node's
``model``. z_i are the logits of exit i. Round t: the server sends every selected client its part of
w, which it trains on

    Σ_i [CE(z_i, y) + r_t / (d − 1) Σ_{j≠i} KL(σ(z_j) ‖ σ(z_i))] − ⟨g_k, w_k⟩ + α/2 ‖w_k − w‖²

z_j without gradient, r_t = exp(−5 (1 − min(t − 1, R) / R)²), R = ``ramp``; then
g_k ← g_k − α (w_k − w), 0 at first. The server, of N clients in all, for every entry e:

    m_e ← mean of w_k,e over the clients of S_t that have e
    h_e ← h_e − α/N Σ_k (w_k,e − w_e) over the same,   w_e ← m_e − h_e / α

Parameters only; buffers are m_e, and what nobody has stays. ``feddyn = false``: no g_k and h, and
w_e ← m_e. Means are uniform unless ``average.weights = "samples"``.

h is the mean of the g_k that the server has counted. So what goes down tells each client the last
round whose reply was accepted, and it goes on from the g_k of exactly that round, as in SCAFFOLD.

The run's accuracy is that of the mean of the logits of the deepest network's exits; each exit is
scored too (``exit1`` …), and a client scores the network of its own depth.

A client's bytes are those of its part: less than FedAvg's for the deepest network.

Deviations:
- ``exits = "last"``, ``distil = false``: only the deepest exit of a client learns, which is
  InclusiveFL without momentum, with a head for each depth. The released code calls it so.
- The released code adds 10⁻⁷ to the teacher's probabilities; we do not.
- Images of odd sides: a gate is interpolated to its stage's size. Exits by a linear layer alone are
  architectures too: ``resnet18-linear2``.
- The cnn family (ours) halves nothing after its first stage; exits do at every missing stage.
"""

import math
from collections.abc import Sequence
from typing import Literal, final

from common import models, protocol
from common.config import Config, not_allowed
from common.methods.fedavg import Averaging
from common.protocol import Round
from common.protocol import Trained as Up
from common.section import AtLeastOne, Positive
from common.task import Task


@final
class Options(Averaging):
    leaks = "parts that few clients may share"
    auto = {"average.weights": "uniform"}
    projects = False

    exits: Literal["all", "last"] = "all"
    """Exits that learn: all of the client's, or the deepest alone."""
    distil: bool = True
    """Exits learn from one another."""
    ramp: AtLeastOne = 300
    """R, rounds until they do so at full weight."""
    feddyn: bool = True
    """Dynamic regularisation: each client keeps g_k, the server h."""
    alpha: Positive = 0.1
    """α of the dynamic regularisation."""

    def weight(self, t: int) -> float:
        """r_t in (0, 1], 0 without distillation."""
        past = min(t - 1, self.ramp) / self.ramp
        return math.exp(-5 * (1 - past) ** 2) if self.distil else 0.0

    def check(self, config: Config) -> None:
        super().check(config)
        if self.feddyn and config.average.robust != "none":
            why = "depthfl.feddyn = true: h is the mean of what clients keep"
            raise not_allowed("average.robust", config.average.robust, why, "none")

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        deepest(specs)


def deepest(specs: Sequence[str]) -> str:
    """Return the deepest of several networks that are cut from one network with exits.

    Raises ``ValueError``, one line, for an architecture that is none, or of another network.
    """
    for spec in specs:
        if not models.exits(spec)[1]:
            like = "it should be like resnet18-exits2"
            raise ValueError(f"model {spec!r} has no exits, which depthfl needs; {like}")
        if models.exits(spec)[0] != models.exits(specs[0])[0]:
            raise ValueError(f"models {specs[0]!r} and {spec!r} are not cut from one network")
    return max(specs, key=lambda spec: models.exits(spec)[1])


@final
class Down(protocol.Model):
    """``w``: the client's part."""

    accepted: Round  #: of the last reply of this client that the server counted into h; 0: none
