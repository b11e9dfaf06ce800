"""HeteroFL: federated averaging whose clients train narrower networks, each a block of the widest.

Diao, Ding, Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients", ICLR 2021, Algorithm 1.

The server holds w of the widest network. Client k trains it at a rate r_k ≤ 1: of a layer with m
channels the first ⌈r_k m⌉, whose inputs are those of the layer before; image channels and classes
are whole. Round t: the server sends client k its block of w; the client minimises

    CE(z with the logits of classes that it lacks set to 0, y)                       (``mask``)

where in training the inputs of every normalisation are divided by r_k (``scaler``), gradients have
a norm of at most 1 (``train.clip``) and BatchNorm normalises by the batch; the client sends the
block w_k. For every number e of w

    w[e] ← Σ_{k has e} w_k[e] / |{k has e}|

What nobody has stays, and of the head a client has only the rows of its classes (under ``mask``).
With all rates 1 and no mask it is FedAvg with uniform weights, bit for bit.

The rates are width factors over the widest one's: ``fleet = "cnn2,cnn2@0.5-up"``, where ``-up``
rounds channels as the paper does. Each client has its own, or they are drawn anew in each round
among the entries of ``fleet``, of which repeated ones have a larger share (``rates``). A message
says the rate, and a client keeps nothing.

A client at rate r costs about r² of FedAvg's bytes of the widest network, down and up.

The widest network is the run's model (the paper's "Global"); every other width's block is scored
beside it. A client's own figure ("Local") is of the widest network too, with the logits of classes
that the client lacks set to 0, as in the released code.

Deviations:
- Static BatchNorm has no running statistics; those that travel are averaged as other numbers, and
  nothing may read them: networks with BatchNorm need ``score.bn = "recalibrated"``, with which all
  clients measure every width that is scored (the released code takes one pass over all clients'
  data through the widest), or ``"batch"``.
- The released code divides in networks without normalisation too. Here these have no scaler.
- ``average.weights = "samples"`` weighs clients by their samples.
"""

from typing import Annotated, Literal, final

import torch
from pydantic import Field

from common import protocol, seeds
from common.config import Config, not_allowed
from common.methods.fedavg import Averaging, Up
from common.models.batchnorm import MEAN
from common.protocol import Name, Peer
from common.task import Task
from common.widths import LEADING, Taken, Window


class Partial(Averaging):
    """Options of methods whose clients train parts of the widest network."""

    schemes = ("width",)
    auto = {"average.across": "width", "average.weights": "uniform", "train.clip": 1.0}

    rates: Literal["fixed", "redrawn"] = "fixed"
    """Each client trains its own architecture, or in each round any entry of the fleet."""
    mask: Literal["zero", "none"] = "zero"
    """Logits of classes that a client lacks are 0, and it has no part in their rows; or neither."""
    scaler: bool = True
    """In training, what is normalised is divided by the rate before."""

    def check(self, config: Config) -> None:
        super().check(config)
        if self.rates == "redrawn" and any(node.model for node in config.nodes.values()):
            key = f"{config.run.method}.rates"
            raise not_allowed(key, "redrawn", "a model in [node.K]", "fixed")

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        tracked = any(name.endswith(MEAN) for spec in specs for name in task.expected(spec))
        if tracked and task.config.score.bn == "running":
            why = f'method = "{task.config.run.method}", whose BatchNorm has no running statistics'
            raise not_allowed("score.bn", "running", why, "recalibrated", "batch")

    def taken(self, task: Task, peer: Peer, t: int) -> Taken:
        """What a client takes in round t; t = 0: what it would start from."""
        classes = set(peer.classes) if self.mask == "zero" else set(range(task.num_classes))
        rows = tuple(sorted(classes)) if len(classes) < task.num_classes else None
        if t == 0:
            return Taken(peer.model, LEADING, rows)
        spec, fleet = peer.model, task.config.fleet
        if self.rates == "redrawn":
            drawn = seeds.stream(task.seed, "rate", peer.k, t)
            spec = fleet[int(torch.randint(len(fleet), (), generator=drawn))]
        return Taken(spec, self.window(task.seed, peer.k, t), rows)

    def window(self, seed: int, k: int, t: int) -> Window:
        """The channels that client k takes in round t ≥ 1."""
        return LEADING

    @property
    def by_width(self) -> bool:
        """Whether convolutions are weighed by the client's output channels."""
        return False


@final
class Options(Partial):
    """HeteroFL's."""

    leaks = "parts that few clients may share"


@final
class Down(protocol.Model):
    spec: Name  #: the architecture of w
    rate: Annotated[float, Field(gt=0, le=1)]  #: r_k, its width over the widest's
