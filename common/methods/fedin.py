"""FedIN: federated intermediate layers learning.

Chan, Jiang, Deng and Ngai, "FedIN: Federated Intermediate Layers Learning for Model Heterogeneity",
Algorithm 1, equations 4, 8, 10, 13, 14.

Client k's own model w_k is cut into extractor w_e, intermediate layers w_in and classifier w_c. For
an image x

    s_in = f(x; w_e)  (5)      s_out = f(s_in; w_in)  (6)      f(x; w_k) = f(s_out; w_c)  (7)

where s_in has one shape in the whole fleet, and so has s_out (``common/models/split.py``).

Round t: the server sends each selected client the weights of its architecture and a batch
S = {(s_in, s_out)} of ``samples`` pairs. It draws the pairs from a pool with every client's latest
batch. On each batch (x, y), with the same S for the whole round, the client computes

    l_local = CE(f(x; w_k), y) + μ/2 ‖w_k − w‖²                            (4)
    l_IN    = MSE(f(s_in; w_in), s_out), the mean over all numbers         (8)
    w_k ← optimiser step along Z = G_IN + λ/2 G_local                      (14)

where G_IN and G_local are the gradients of l_IN and l_local; G_IN = 0 outside w_in
(``grad-mode = "eq14"``). Without S (in the first round) the step is along G_local. The client sends
w_k and the (s_in, s_out) of its last full batch. The server adds the features to the pool and
averages the weights across depths (``average.across``, see ``server_app/aggregation/mean.py``).

``grad-mode = "eq13"``: on w_in, Z is the vector nearest to G_IN that does not oppose G_local,

    Z = G_IN  if b ≥ 0,  G_IN − (b/a) G_local  if b < 0                    (13)

with a = ‖G_local‖² and b = ⟨G_local, G_IN⟩, which solves the convex problem (10). For b ≥ 0 the
local loss does not move w_in. "Without Opt" of Table VII has two readings. ``"sequential"``: a step
along G_local for all weights, then a step of a second optimiser along G_IN for w_in. ``"phases"``:
all steps along G_local first, then the same number of steps along G_IN.

Under eq14 and eq13 the journal compares the two gradients on w_in at every ``compare``-th step of a
client. It has the share of steps with opposed gradients (⟨G_local, G_IN⟩ < 0, ``client_conflict``),
the mean cosine and the mean of ‖G_IN‖/‖G_local‖ (``client_norm_ratio``).

``in-training = false`` is "without IN": no features are sent, and the method is FedProx. With μ = 0
too it is FedAvg.

Privacy: besides weights, a client sends s_in and s_out of one batch of its images. Features of a
shallow extractor are closer to the images than weights are; s_in often shows the image content. The
server can link features to a client, other clients receive them without the sender. ``clip`` and
``noise`` limit this leakage at a cost in accuracy, but give no privacy guarantee.

Membership: the pool loses the features of a client that leaves. The architectures are those of the
roster.

Deviations, with their switches:
- λ/2 scales l_local everywhere in equation 14. A constant factor has no effect under Adam, but it
  has under other optimisers. ``outer-scale`` sets the factor for extractor and classifier alone.
- Algorithm 1 draws one S for all clients. Here each client's S comes from the other clients'
  batches (``others-only = false``: one S for all clients, from all batches).
- The paper's pool grows with the federation; here it holds the newest ``pool`` batches.
- BatchNorm layers of w_in process S in train mode, so S enters their running statistics.
- The paper does not define the server's test. Here the run's accuracy is the mean over the
  architectures' models, and each of them is logged too.
"""

from typing import Annotated, Literal, final

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from common.exchange import protocol
from common.methods.fedavg import Averaging
from common.models.split import common_shapes
from common.settings.config import OF_SAMPLES
from common.settings.section import AtLeastOne, NonNegative, Positive
from common.training.task import Task


@final
class Options(Averaging):
    facts = Averaging.facts.but(
        asynchronous="mean",
        down="θ_k, layer by layer, and features of one batch",
        up="θ_k, layer by layer, and features of one batch",
        sends="a network and features of one batch",
        leaves="the same as `fedavg`, of the client's own architecture, and feature pairs (s_in, "
        "s_out) of its last full batch",
        infers="the same as with `fedavg`; s_in often shows what is on the images. Other clients "
        "get these features, without a name. `fedin.clip` and `fedin.noise` blur them without a "
        "guarantee",
        whole="each architecture, and their mean",
        networks="parts",
    )

    leaks = "features in addition to the weights"
    auto = {"average.across": "layerwise", "average.weights": "uniform"}
    schemes = ("layerwise", "same", "depth")
    projects = False

    in_training: bool = True
    """Whether IN training is on; false: no features are sent."""

    objectives = OF_SAMPLES
    mu: NonNegative = 0.1
    """μ of equation 4; the paper's μ/2 is 0.05."""
    grad_mode: Literal["eq14", "eq13", "sequential", "phases"] = "eq14"
    """Rule that combines G_IN and G_local."""
    compare: Annotated[int, Field(ge=0)] = 10
    """Steps from one comparison of the two gradients to the next; 0: no comparison."""
    lambda_local: NonNegative = 1.0
    """λ of equation 14."""
    outer_scale: Positive = 0.5
    """Factor of G_local on extractor and classifier under eq14 and eq13; λ/2 in the paper."""
    samples: Annotated[int, Field(ge=1, le=65536)] = 16
    """|S|, pairs of features that a client receives (fewer while the pool has fewer)."""
    others_only: bool = True
    """Whether S has features of other clients only."""
    pool: AtLeastOne = 100
    """Batches that the server stores, at most one for each client."""
    clip: NonNegative = 0.0
    """Largest Euclidean norm of a sample's s_in, and of its s_out, when sent; 0: no limit."""
    bound: NonNegative = 0.0
    """Largest norm of a sample's s_in, and of its s_out, in the server's pool, relative to the
    median over the round's clients of their median norm; longer ones are scaled. 0: no bound."""
    noise: NonNegative = 0.0
    """Standard deviation of the Gaussian noise added to every sent feature; 0: no noise."""

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        common_shapes(specs, task.shape, task.num_classes, stem=task.stem)
        super().check_fleet(task, specs)


@final
class Request(protocol.ModelRequest, kind="fedin.Down"):
    """Request with ``w``, the mean w̄ for the client's architecture, and S."""

    s_in: Float[Tensor, "n c *positions"] | None  #: feature inputs of S; None: no IN training
    s_out: Float[Tensor, "n c2 *positions2"] | None  #: feature outputs of S


@final
class Reply(protocol.ModelReply, kind="fedin.Up"):
    """Reply with w_k and the features of the client's last full batch."""

    s_in: Float[Tensor, "n c *positions"] | None  #: feature inputs
    s_out: Float[Tensor, "n c2 *positions2"] | None  #: feature outputs
