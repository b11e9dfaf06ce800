"""HeteroFL: federated averaging whose clients train narrower networks, each a block of the widest.

Diao, Ding, Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients", ICLR 2021, Algorithm 1.

The server has w of the widest network. Client k trains a block of it at a rate r_k ≤ 1: the first
⌈r_k m⌉ of the m channels of each layer. The inputs of a layer are the outputs of the previous
layer; image channels and classes are not cut. Round t: the server sends client k its block of w,
and the client minimises

    CE(z with the logits of absent classes set to 0, y)                              (``mask``)

In training the inputs of every normalisation are divided by r_k (``scaler``), gradients have a norm
of at most 1 (``train.clip``) and BatchNorm uses the statistics of the batch. The client sends the
block w_k. For every number e of w

    w[e] ← Σ_{k has e} w_k[e] / |{k has e}|

Numbers that no client has stay unchanged. Under ``mask`` a client trains only the head's rows of
its classes. With all rates 1 and no mask the method is FedAvg with uniform weights, bit for bit.

A rate is a width factor divided by that of the widest network: ``fleet = "cnn2,cnn2@0.5-up"``,
where ``-up`` rounds channels as the paper does. Each client has a fixed rate, or draws an entry of
``fleet`` in each round, where repeated entries are more likely (``rates``). The request carries the
rate, and a client stores no state.

A client with rate r transfers about r² of FedAvg's bytes for the widest network, each way.

The widest network is the run's model (the paper's "Global"); the blocks of all other widths are
scored too. A client's own accuracy ("Local") is that of the widest network with the logits of its
absent classes set to 0, as in the released code.

Deviations:
- Static BatchNorm has no valid running statistics; they are averaged like other numbers but never
  used. Networks with BatchNorm need ``score.bn = "recalibrated"`` or ``"batch"``. With
  ``"recalibrated"`` all clients measure the statistics of every scored width. The released code
  measures the widest network in one pass over all clients' data.
- The released code also scales networks without normalisation. Here they have no scaler.
- ``average.weights = "samples"`` weights clients by their samples.
"""

from typing import Annotated, Literal, final

import torch
from pydantic import Field

from common import seeds
from common.exchange import protocol
from common.exchange.protocol import ClientInfo, Name
from common.methods.fedavg import Averaging, Reply
from common.models.batchnorm import MEAN
from common.settings.config import Config, not_allowed
from common.techniques.widths import LEADING, Submodel, Window
from common.training.task import Task


class Partial(Averaging):
    """Options of methods whose clients train parts of the widest network."""

    facts = Averaging.facts.but(
        down="a block of the channels of the widest network",
        up="a block of the channels of the widest network",
        sends="its part of a network",
        leaves="the weights and BatchNorm statistics of the client's block, also of the head's "
        "rows of classes that it lacks",
        infers="the same as with `fedavg`, of fewer weights. The census has the classes of a "
        "client; rows of other classes are not used",
        whole="the widest network",
        own="the widest network, with the client's classes only (`mask`)",
        networks="parts",
    )

    schemes = ("width",)
    auto = {"average.across": "width", "average.weights": "uniform", "train.clip": 1.0}

    rates: Literal["fixed", "redrawn"] = "fixed"
    """Architecture of a client: its own in all rounds, or a random fleet entry in each round."""
    mask: Literal["zero", "none"] = "zero"
    """``zero``: logits of a client's absent classes are 0, and it does not train their rows."""
    scaler: bool = True
    """Whether inputs of normalisation layers are divided by the rate in training."""

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

    def submodel(self, task: Task, info: ClientInfo, t: int) -> Submodel:
        """Return the part that a client trains in round t; t = 0: its leading block."""
        classes = set(info.classes) if self.mask == "zero" else set(range(task.num_classes))
        rows = tuple(sorted(classes)) if len(classes) < task.num_classes else None
        if t == 0:
            return Submodel(info.model, LEADING, rows)
        spec, fleet = info.model, task.config.fleet
        if self.rates == "redrawn":
            generator = seeds.stream(task.seed, "rate", info.k, t)
            spec = fleet[int(torch.randint(len(fleet), (), generator=generator))]
        return Submodel(spec, self.window(task.seed, info.k, t), rows)

    def window(self, seed: int, k: int, t: int) -> Window:
        """Return the channels that client k takes in round t ≥ 1."""
        return LEADING

    @property
    def by_width(self) -> bool:
        """Whether the mean of convolutions weights clients by their output channels."""
        return False

    @property
    def by_updates(self) -> bool:
        """Whether all other means weight clients by counts of updates (``fedrolex``)."""
        return False


@final
class Options(Partial):
    """Options of HeteroFL."""

    leaks = "parts that few clients may share"


@final
class Request(protocol.ModelRequest, kind="heterofl.Down"):
    """Request with ``w``, the client's block."""

    spec: Name  #: the architecture of w
    rate: Annotated[float, Field(gt=0, le=1)]  #: r_k, its width over the widest's
