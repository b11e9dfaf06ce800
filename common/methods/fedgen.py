"""FedGen: a feature generator, trained on the server, regularises the clients' training.

Zhu et al., "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", 2021,
Algorithm 1, in the form of FedKF's comparison and in the authors' own.

G(z, y) → features in front of the classifiers' last layer h. Round t:

    client k, from w and (from round 2) G, with ŷ ~ p(y), z ~ noise:
        CE(f(w_k; x), y) + α_t CE(h_k(G(z, ŷ)), ŷ) + β_t KL(h_k(G(z, y)) ‖ f(w_k; x))
        and sends w_k and its label counts
    server: w ← Σ_k p_k w_k;  G descends, for n steps of Adam,
        CE(Σ_k p_k h_k(G(z, ŷ)), ŷ) + δ · diversity        (``ensemble = "logits"``, FedKF's code)
        Σ_k α_k^ŷ CE(h_k(G(z, ŷ)), ŷ) + δ · diversity      (``ensemble = "labels"``, the authors')

where α_t = α·decay^t and β_t = β·decay^t. p(y) is the label histogram over all clients that have
replied so far. α_k^y is client k's share of the samples of class y among the active clients. The
target of the KL has no gradient.

FedKF's variant, the default: α = 1, β = 0, no decay, uniform noise, Adam 1e-4, 50 steps. The
authors' variant: α = β = 10, decay = 0.98, ``until = 20``, Adam 3e-4.

The label counts reveal each client's class distribution to the server.

Membership: p(y) no longer counts a client that leaves, until it replies again.

Deviations:
- h is the last linear layer of every architecture; FedKF's code splits LeNet-5 one layer earlier,
  at its 120 activations.
- p(y) covers all clients that have replied so far. FedKF's code counts the batches of the clients
  active in the last round, and the authors' code draws the server's ŷ uniformly from the classes.
- ``average.weights = "uniform"`` makes p_k uniform in the ensemble too.
- The authors' generator has further terms, which are off in their runs; they are omitted here.
- In asynchronous rounds, which the paper does not have, the heads in G's loss are those that
  clients trained, of whatever version, and their weights do not depend on their age.
"""

from typing import Annotated, Literal, final

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from common.exchange import protocol
from common.exchange.protocol import Count
from common.exchange.records import StateDict
from common.methods.fedavg import Averaging
from common.settings.section import AtLeastOne, NonNegative


@final
class Options(Averaging):
    classes_only = "its server generates samples of a class"

    facts = Averaging.facts.but(
        asynchronous="training",
        down="w; also a generator of features",
        up="w; class counts",
        sends="a network and counts of its classes",
        leaves="the same as `fedavg`, and the count of samples of each class",
        infers="the same as with `fedavg`, and the client's class counts whatever `share-counts` "
        "says. All clients get the sum over clients as a histogram",
    )

    leaks = "class counts in addition to the weights"
    uses = ("average", "oca", "finetune", "generator")
    auto = {"generator.lr": 0.0001}

    alpha: NonNegative = 1.0
    """α, weight of the cross-entropy on generated features."""
    beta: NonNegative = 0.0
    """β, weight of the distillation from generated features."""
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor that multiplies both weights after each round."""
    until: Annotated[int, Field(ge=0)] = 0
    """Local steps of a round with regularisation; 0: all steps."""
    ensemble: Literal["logits", "labels"] = "logits"
    """Loss of the generator: that of FedKF's code, or that of the authors' code."""
    diversity: NonNegative = 1.0
    """δ, the weight of the diversity loss."""
    noise: Literal["uniform", "normal"] = "uniform"
    """Distribution of z."""
    noise_size: Annotated[int, Field(ge=1, le=10_000)] = 32
    """Length of z."""
    hidden: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Width of the generator's hidden layer."""
    server_steps: AtLeastOne = 50
    """n, steps of Adam in a round."""
    server_batch_size: Annotated[int, Field(ge=2)] = 64
    """Generated features in a step."""


@final
class Request(protocol.ModelRequest, kind="fedgen.Down"):
    """Request with w, the generator and the label histogram."""

    generator: StateDict | None  #: G; None in round 1
    histogram: Float[Tensor, " C"] | None  #: p(y), summing to 1


@final
class Reply(protocol.ModelReply, kind="fedgen.Up"):
    """Reply with w_k and the client's label counts."""

    counts: list[Count]  #: training samples of each class
