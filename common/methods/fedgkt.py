"""FedGKT: group knowledge transfer between small client networks and a large server network.

He, Annavaram, Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge",
NeurIPS 2020, Algorithm 1; a baseline of DL-MH, whose paper counts its communication (eq. 7).

The global architecture is cut after its first layers. Client k has an extractor f_e, which returns
features H [c, h, w] of an image, and its own small classifier f_c. The server has the remaining
layers f_s. Round t, on every sample (x, y) of client k:

    client: E epochs of CE(z_c, y) + α T² KL(z_s → z_c),  z_c = f_c(f_e(x))        (eq. 3)
    up:     H, z_c and y of every sample
    server: E_s epochs of T² KL(z_c → z_s) + α CE(z_s, y), z_s = f_s(H)             (eq. 4)
    down:   z_s of the client's samples, in the request of the next round

The first round has no z_s, so the client trains with CE alone. KL(a → b) is
KL(softmax(a/T) ‖ softmax(b/T)) without gradient for a. The deployed model of a client is
f_s(f_e(x)); its accuracy is the client's global accuracy, and that of f_c(f_e(x)) is its own
accuracy. Both are measured on its test share or, with ``whole-test``, on the whole test set.

Clients may have any architecture of the global architecture's family whose features have the same
shape (the ResNets, or the CNNs of one width). The server has no complete model to score.

Membership: z_s of an absent client is kept; that of a client that lost its state is dropped.

Deviations: the authors also send features of test samples, and their small classifiers contain an
extra block. Here f_c is a mean and a linear layer, and each client scores on its own test samples.
Labels leave the client, as in the paper.
"""

from typing import Annotated, final

from jaxtyping import Float, Int64
from torch import Tensor

from common.exchange import protocol
from common.settings.config import MethodOptions, OwnModels
from common.settings.marks import Mark
from common.settings.section import AtLeastOne, NonNegative, Positive


@final
class Options(MethodOptions):
    facts = OwnModels.facts.but(
        asynchronous="together",
        down="logits",
        up="features, logits and labels",
        kept="extractor and small classifier",
        sends="features, logits and labels of its samples",
        leaves="features and logits of **every** training sample, **and every label**",
        infers="much of the training set: features of a shallow extractor often show the images",
        own="both together; the extractor with the server's layers",
        networks="parts",
    )

    leaks = "features, logits and labels of all samples"

    projects = False

    alpha: NonNegative = 1.0
    """α, the weight of the client's distillation and of the server's cross-entropy with labels."""
    temperature: Positive = 3.0
    """T of both softmaxes."""
    server_epochs: Annotated[AtLeastOne, Mark.SERVER_EPOCHS] = 5
    """E_s, epochs of the server in a round."""
    bound: NonNegative = 0.0
    """Largest norm of a sample's features, and of its logits, relative to the median over the
    round's clients of their median norm; longer ones are scaled. 0: no bound."""
    whole_test: bool = False
    """Whether clients that have the whole test set score on it instead of on their own shares, for
    comparison with other methods. The mean over clients is ``fairness.global.amp``."""


@final
class Request(protocol.Request, kind="fedgkt.Down"):
    """Request with the server's logits of the previous round."""

    z: Float[Tensor, "n C"] | None  #: z_s of the client's samples in its order; None in round 1


@final
class Reply(protocol.Reply, kind="fedgkt.Up"):
    """Reply with features, logits and labels of all samples of the client."""

    h: Float[Tensor, "n c *positions"]  #: H
    z: Float[Tensor, "n C"]  #: z_c
    y: Int64[Tensor, " n"]
