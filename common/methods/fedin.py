"""FedIN: federated intermediate layers learning.

Chan, Jiang, Deng and Ngai, "FedIN: Federated Intermediate Layers Learning for Model Heterogeneity",
Algorithm 1, equations 4, 8, 10, 13, 14.

Client k's own model w_k is cut into extractor w_e, intermediate layers w_in and classifier w_c, so
that for an image x

    s_in = f(x; w_e)  (5)      s_out = f(s_in; w_in)  (6)      f(x; w_k) = f(s_out; w_c)  (7)

and s_in and s_out have one shape each in the whole fleet (``common/models/split.py``).

Round t, server: send each selected client the weights of its architecture and a batch
S = {(s_in, s_out)} of ``samples`` pairs, drawn pair by pair from a pool with every client's latest
batch. Client: on each batch (x, y), with the one S of the round,

    l_local = CE(f(x; w_k), y) + μ/2 ‖w_k − w‖²                            (4)
    l_IN    = MSE(f(s_in; w_in), s_out), the mean over all numbers         (8)
    w_k ← optimiser step along Z = G_IN + λ/2 G_local                      (14)

where G_IN and G_local are the gradients of l_IN and l_local; G_IN = 0 outside w_in
(``grad-mode = "eq14"``). Without an S (the first round) the step is along G_local. The client sends
w_k and the (s_in, s_out) of its last full batch. Server: put them into the pool and average the
weights across depths (``average.across``, see ``server_app/combine/mean.py``).

``grad-mode = "eq13"``: on w_in instead the Z nearest to G_IN that does not oppose G_local,

    Z = G_IN  if b ≥ 0,  G_IN − (b/a) G_local  if b < 0                    (13)

with a = ‖G_local‖² and b = ⟨G_local, G_IN⟩, which solves the convex problem (10); for b ≥ 0 the
local loss does not move w_in at all. "Without Opt" of Table VII can be read in two ways:
``"sequential"``, a step along G_local for all weights, then one of a second optimiser along G_IN
for w_in; ``"phases"``, all steps along G_local first, then as many along G_IN.

The journal tells how the two gradients lie to each other on w_in at every ``compare``-th step of a
client under eq14 and eq13: the share of steps in which they oppose each other (⟨G_local, G_IN⟩ < 0,
``client_conflict``), the mean cosine and the mean of ‖G_IN‖/‖G_local‖ (``client_norm_ratio``).

``in-training = false`` is "without IN" and sends no features: FedProx. With μ = 0 too it is FedAvg.

What leaves a client: besides weights, s_in and s_out of one batch of its images. Features of a
shallow extractor are closer to the images than weights are; s_in often shows what is on them. The
server sees whose they are, other clients see them without a name. ``clip`` and ``noise`` bound and
blur them at a cost in accuracy; they come with no privacy guarantee by themselves.

Deviations, with their switches:
- λ/2 scales l_local everywhere in equation 14. Adam does not notice a constant factor, other
  optimisers do: ``outer-scale`` sets the factor for extractor and classifier on its own.
- Algorithm 1 draws one S for all clients. We draw each client's from the other clients' batches
  (``others-only = false``: one S for all, from everybody's).
- The paper's pool grows with the federation; ours holds the newest ``pool`` batches.
- BatchNorm layers of w_in see S in train mode and count it into their running statistics.
- The paper does not say what the server tests: the run's accuracy is the mean over the
  architectures' models, each of which is logged too.
"""

from typing import Annotated, Literal, final

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from common import protocol
from common.methods.fedavg import Averaging
from common.models.split import common_shapes
from common.section import AtLeastOne, NonNegative, Positive
from common.task import Task


@final
class Options(Averaging):
    leaks = "features beside the weights"
    auto = {"average.across": "layerwise", "average.weights": "uniform"}
    schemes = ("layerwise", "same", "depth")
    projects = False

    in_training: bool = True
    """IN training; false: nobody sends or receives features."""
    mu: NonNegative = 0.1
    """μ of equation 4; the paper's μ/2 is 0.05."""
    grad_mode: Literal["eq14", "eq13", "sequential", "phases"] = "eq14"
    """How the two gradients meet."""
    compare: Annotated[int, Field(ge=0)] = 10
    """Steps from one comparison of the two gradients to the next; 0: none."""
    lambda_local: NonNegative = 1.0
    """λ of equation 14."""
    outer_scale: Positive = 0.5
    """Factor of G_local on extractor and classifier under eq14 and eq13; literally it is λ/2."""
    samples: Annotated[int, Field(ge=1, le=65536)] = 16
    """|S|: pairs of features that a client receives (fewer while the pool holds fewer)."""
    others_only: bool = True
    """S holds features of other clients only."""
    pool: AtLeastOne = 100
    """Batches that the server keeps, at most one of each client."""
    clip: NonNegative = 0.0
    """Largest Euclidean norm of one sample's s_in, and of its s_out, before it is sent; 0: none."""
    noise: NonNegative = 0.0
    """Standard deviation of the Gaussian noise on every number of sent features; 0: none."""

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        common_shapes(specs, task.shape, task.num_classes, stem=task.stem)
        super().check_fleet(task, specs)


@final
class Down(protocol.Model):
    """``w``: w̄ for the client's architecture."""

    s_in: Float[Tensor, "n c h w"] | None  #: feature inputs of S; None: no IN training
    s_out: Float[Tensor, "n c2 h2 w2"] | None  #: feature outputs of S


@final
class Up(protocol.Trained):
    s_in: Float[Tensor, "n c h w"] | None  #: of the client's last full batch
    s_out: Float[Tensor, "n c2 h2 w2"] | None
