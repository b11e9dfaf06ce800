"""FedGKT: group knowledge transfer, small networks at the edge and a large one behind them.

He, Annavaram, Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge",
NeurIPS 2020, Algorithm 1; a baseline of DL-MH, whose paper counts its communication (eq. 7).

The global architecture is cut behind its first layers. Client k holds an extractor f_e, which gives
features H [c, h, w] of an image, and a small classifier f_c of its own on top; the server holds the
rest, f_s. Round t, on every sample (x, y) of client k:

    client: E epochs of CE(z_c, y) + α T² KL(z_s → z_c),  z_c = f_c(f_e(x))        (eq. 3)
    up:     H, z_c and y of every sample
    server: E_s epochs of T² KL(z_c → z_s) + α CE(z_s, y), z_s = f_s(H)             (eq. 4)
    down:   z_s of the client's samples, with the next round

In the first round there is no z_s yet and the client learns by CE alone. KL(a → b) is
KL(softmax(a/T) ‖ softmax(b/T)), a detached. What a client uses in the end is f_s(f_e(x)); its
accuracy is scored as that of the global model, that of f_c(f_e(x)) as its own, on its test share
or, with ``whole-test``, on the whole test set.

Clients may bring any architecture of the global one's family whose features have one shape (the
ResNets or the CNNs of one width). There is no model that the server could score alone.

Deviations: the authors also send features of test samples, and their small classifiers have a block
of their own; here f_c is a mean and a linear layer, and clients are scored where their samples are.
Labels leave the client, as in the paper.
"""

from typing import final

from jaxtyping import Float, Int64
from torch import Tensor

from common import protocol
from common.config import MethodOptions
from common.section import AtLeastOne, NonNegative, Positive


@final
class Options(MethodOptions):
    leaks = "features, logits and labels of all samples"

    projects = False

    alpha: NonNegative = 1.0
    """α, the weight of distillation at the client, and of the labels at the server."""
    temperature: Positive = 3.0
    """T of both softmaxes."""
    server_epochs: AtLeastOne = 5
    """E_s, epochs of the server in a round."""
    whole_test: bool = False
    """Clients score on the whole test set, if they have that, instead of on their own shares: for
    tables whose other rows are scored there. The mean over clients is ``fairness.global.amp``."""


@final
class Down(protocol.Down):
    z: Float[Tensor, "n C"] | None  #: z_s of the client's samples in its order; None at first


@final
class Up(protocol.Up):
    h: Float[Tensor, "n c h w"]  #: H
    z: Float[Tensor, "n C"]  #: z_c
    y: Int64[Tensor, " n"]
