"""FedBN: federated averaging of everything except BatchNorm.

Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, Algorithm 1.

FedBN has the halves of FedPer (``common/methods/fedper.py``); the private part is another one. Each
client keeps weight, bias, running statistics and counter of every BatchNorm layer, and trains the
whole network on cross-entropy. The server sets the mean of all other entries. Private entries start
from their initial values, also at a client that takes part later than the others. Other
normalisation layers are shared.

There is no global model: each client scores the newest shared part with its own BatchNorm layers. A
network without BatchNorm gives FedAvg, except that clients score; the run warns of it.

Deviations:
- p_k is uniform by default, as in the authors' code, whose clients have equal numbers of samples.
  PFLlib weights by samples (``average.weights = "samples"``).
- The authors' code, PFLlib, FL-bench and Flower's baseline select entries with "bn" in their names,
  which misses BatchNorm layers of other names, such as ``downsample.1`` of a ResNet. Here the type
  of the layer decides; ``by-name = true`` is the released selection.
- In PFLlib clients upload their BatchNorm layers, and the mean is not used. Here they do not leave
  the client, so a new client cannot start from their mean either.
"""

from typing import ClassVar, final

from common.methods.fedper import PartlyShared, Reply, Request
from common.models import parts
from common.models.classifier import Classifier

__all__ = ["Options", "Reply", "Request"]

SERVER = CLIENT = "fedper"


@final
class Options(PartlyShared):
    """Options of FedBN."""

    facts = PartlyShared.facts.but(
        down="everything except BatchNorm",
        up="everything except BatchNorm",
        kept="weights, biases, statistics and counters of BatchNorm",
        sends="a network without BatchNorm",
        leaves="the trained network without BatchNorm: neither its parameters nor its statistics",
        infers="the same as with `fedavg`, without means and variances of features",
        own="the newest shared part with the own BatchNorm",
    )

    auto: ClassVar = {"average.weights": "uniform"}

    by_name: bool = False
    """Keep entries with ``bn`` in their names instead of those of BatchNorm layers."""

    def private(self, net: Classifier) -> frozenset[str]:
        return parts.batchnorm(net, by_name=self.by_name)

    def warning(self, net: Classifier) -> str:
        if self.private(net):
            return ""
        return f"{net.spec} has no BatchNorm that fedbn could keep: everything is averaged"
