"""FedRolex: HeteroFL whose clients take other channels in every round, in a rolling window.

Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction",
NeurIPS 2022, Algorithm 1.

As HeteroFL (its messages and both its halves), but in round t a client of rate r takes, of every
layer with m channels, those of index

    (i − (t − 1)) mod m,   i = 0 … ⌈r m⌉ − 1                                           (``roll``)

so that in m rounds every channel is taken ⌈r m⌉ times. The inputs of a layer are the outputs of the
one before, and layers with equally many channels have the same, so that shortcuts fit. Image
channels and classes are whole. A number of w is the mean over the clients that took it.

``windows = "static"`` is HeteroFL, bit for bit; ``"random"`` is federated dropout: channels drawn
for each client in each round. ``count = "width"`` weighs clients by ⌈r m⌉ in convolutions, one of
the released code's options; its other one, by updates, is the plain mean.

Deviations: a layer that a client takes whole stays in order. BatchNorm and scaler are as in
HeteroFL; the released code scores on the statistics of the test batch (``score.bn = "batch"``). The
other widths are scored by their leading blocks.
"""

from typing import Literal, final

from common.methods.heterofl import Down, Partial, Up
from common.widths import LEADING, Drawn, Roll, Window

SERVER = CLIENT = "heterofl"


@final
class Options(Partial):
    leaks = "parts that few clients may share"

    windows: Literal["roll", "static", "random"] = "roll"
    """Which channels a client takes: they move on by one in every round, the first, or any."""
    count: Literal["mean", "width"] = "mean"
    """Clients that took a number count alike, or in convolutions by how many channels they took."""

    def window(self, seed: int, k: int, t: int) -> Window:
        if self.windows == "random":
            return Drawn(seed, k, t)
        return Roll(t - 1) if self.windows == "roll" else LEADING

    @property
    def by_width(self) -> bool:
        return self.count == "width"
