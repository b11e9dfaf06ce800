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
an option of the released code.

Deviations, with their switches:
- The released code counts the updates U[e] of each number e, from 1 on. The counts are meant as
  equal weights of a round's clients, which cancel in the mean. But from the second entry of w on,
  the name of the counts is an alias of the copy that is being counted. A client that has e thus
  raises the weight of the next client: the j-th of them weighs U[e] + j − 1. The code's default
  ``weighting = "avg"`` uses these weights for normalisation, biases and the head, and plain means
  for convolutions (``update-counts = true``). Ten clients that have e weigh 1 to 10 in round 1; the
  weights become equal over the rounds. Here all means are plain.
- The code takes a round's clients in random order. With ``update-counts`` the order is drawn too.
- The released option ``weighting = "updates"`` also uses the counts for convolutions. It is not
  available; without the alias it equals the plain mean.
- A layer that a client takes completely stays in order. BatchNorm and scaler are as in HeteroFL;
  the released code scores on the statistics of the test batch (``score.bn = "batch"``). The leading
  blocks of the other widths are scored.
"""

from typing import Literal, final

from common.methods.heterofl import Partial, Reply, Request
from common.settings.config import Config, not_allowed
from common.techniques.widths import LEADING, RandomWindow, Roll, Window

SERVER = CLIENT = "heterofl"


@final
class Options(Partial):
    facts = Partial.facts.but(
        leaves="the same as `heterofl`, of other channels in each round",
        infers="the same as with `heterofl`",
    )

    leaks = "parts that few clients may share"

    windows: Literal["roll", "static", "random"] = "roll"
    """Channels that a client takes: a window that moves by one a round, the first, or random."""
    count: Literal["mean", "width"] = "mean"
    """Weights of the clients in a mean: equal, or by their number of channels in convolutions."""

    update_counts: bool = False
    """Whether means of everything but convolutions weight clients by the released code's update
    counts, which grow from client to client within a round."""

    def check(self, config: Config) -> None:
        super().check(config)
        if self.update_counts:
            rules = {"average.weights": "uniform", "average.robust": "none", "oca.aggregate": "off"}
            for key, allowed in rules.items():
                if (value := config.flat[key]) != allowed:
                    raise not_allowed(key, value, "fedrolex.update-counts = true", allowed)

    def window(self, seed: int, k: int, t: int) -> Window:
        if self.windows == "random":
            return RandomWindow(seed, k, t)
        return Roll(t - 1) if self.windows == "roll" else LEADING

    @property
    def by_width(self) -> bool:
        return self.count == "width"

    @property
    def by_updates(self) -> bool:
        return self.update_counts
