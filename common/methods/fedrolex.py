"""FedRolex: HeteroFL with a rolling window of channels that moves every round.

Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction",
NeurIPS 2022, Algorithm 1.

FedRolex uses HeteroFL's messages and both halves. In round t a client with rate r takes the
following channels of every layer with m channels:

    (i − (t − 1)) mod m,   i = 0 … ⌈r m⌉ − 1                                           (``roll``)

In m rounds every channel is thus taken ⌈r m⌉ times. The inputs of a layer are the outputs of the
previous layer. Layers with the same number of channels use the same indices, so that shortcuts fit.
Image channels and classes are not cut. Each number of w becomes the mean over the clients that
trained it.

``windows = "static"`` is HeteroFL, bit for bit. ``"random"`` is federated dropout: channels are
drawn for each client in each round. ``count = "width"`` weights clients by ⌈r m⌉ in convolutions,
an option of the released code; its option "by updates" equals the plain mean.

Deviations: a layer that a client takes completely stays in order. BatchNorm and scaler are as in
HeteroFL; the released code scores on the statistics of the test batch (``score.bn = "batch"``). The
leading blocks of the other widths are scored.
"""

from typing import Literal, final

from common.methods.heterofl import Partial, Reply, Request
from common.techniques.widths import LEADING, Drawn, Roll, Window

SERVER = CLIENT = "heterofl"


@final
class Options(Partial):
    leaks = "parts that few clients may share"

    windows: Literal["roll", "static", "random"] = "roll"
    """Channels that a client takes: a window that moves by one a round, the first, or random."""
    count: Literal["mean", "width"] = "mean"
    """Weights of the clients in a mean: equal, or by their number of channels in convolutions."""

    def window(self, seed: int, k: int, t: int) -> Window:
        if self.windows == "random":
            return Drawn(seed, k, t)
        return Roll(t - 1) if self.windows == "roll" else LEADING

    @property
    def by_width(self) -> bool:
        return self.count == "width"
