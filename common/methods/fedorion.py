"""FedORION: aggregation-assisted proxyless distillation.

"FedORION: Aggregation-Assisted Proxyless Distillation for Heterogeneous Federated Learning",
Algorithm 1, equations 1-3.

Client i has its own model θ_i of any architecture and a copy θ_gi of the global model θ_g.

Deep mutual learning (DML) on each batch (x, y), both losses from the same two forward passes:

    L_CMi = CE(f(x; θ_i), y)  + KD(f(x; θ_gi) → f(x; θ_i))     (1)  θ_i  ← θ_i  − η ∇L_CMi
    L_GMi = CE(f(x; θ_gi), y) + KD(f(x; θ_i) → f(x; θ_gi))     (2)  θ_gi ← θ_gi − η ∇L_GMi

KD(a → b) is KL(softmax a ‖ softmax b) without gradient for the teacher a (``kd-loss = "ce"``:
cross-entropy of soft outputs, which has the same gradient).

Selective DML: a client with the global architecture skips DML and trains θ_g on CE. Its model is
used both as θ_gi and as θ_i. With ``skip-share`` in [0, 1] (Figure 3), ⌊share · N + ½⌋ clients get
the global architecture and skip DML, in a random order that is the same for every share. All other
clients use DML, whatever their architecture.

Server, from the C participants: θ_g ← 1/C Σ θ_gi (BatchNorm buffers too), then on noise
z ~ N(0, 1), all networks on the statistics of the batch,

    L_KD = Σ_i n_i / Σ n · KD(f(z; θ_i) → f(z; θ_g))            (3)  θ_g ← θ_g − η_g ∇L_KD

Other kinds of noise (Table 4): dead leaves, an untrained StyleGAN, uniform (``noise.kind``).

The client stores θ_i across rounds; θ_g replaces θ_gi whenever the client is selected.

Ablations: ``dml = false`` trains the copy by the distillation term of (2) alone, and θ_i by (1) as
before (section 5, "Effect of DML"); ``aggregate = false`` distils into the previous θ_g;
``distill = false`` stops after the average.

Membership: Σn in equation 3 covers the members. Under ``stale-broadcast`` a client that lost its
model receives the first weights again.

Deviations, with their switches:
- Algorithm 1 draws one noise batch in a server epoch; the authors' code draws 200 in each of 5
  epochs. The defaults are smaller (``noise.epochs``, ``noise.batches``).
- The authors' code weights teachers by n_i / N over all clients (``kd-weights = "all"``); the paper
  and the default weight over the participants.
- The authors' code sends the new θ_g only to the clients selected in that round. A client selected
  later continues from the last copy that it received (``stale-broadcast = true``).
- The authors' code scores θ_g on the statistics of each test batch, which is transductive
  (``score.bn = "batch"``, as in the experiments for the paper's tables). By default θ_g is scored
  like the model of every method, on the averaged running statistics. Distillation does not change
  them under ``noise.protect-running-stats``.
- The authors' code uses an output of θ_i with softmax applied twice in (2). This error is not
  reproduced.
- In their distillation dropout is active in the teachers; here only BatchNorm leaves evaluation
  mode.
- In asynchronous rounds, which the paper does not have, a teacher is the model that a client
  trained, of whatever version, and its weight does not depend on its age.
"""

from typing import Annotated, Literal, final

from pydantic import Field

from common.exchange import protocol
from common.exchange.records import StateDict
from common.methods.fedavg import Averaging, Request
from common.settings.config import NO_NOISE, Config, not_allowed


@final
class Options(Averaging):
    facts = Averaging.facts.but(
        asynchronous="training",
        up="w; also θ_k",
        kept="θ_k, whole",
        sends="a network and a small one",
        leaves="the trained copy of the global model and the client's own model",
        infers="the same as with `fedavg` for both models",
        own="θ_k",
        networks="own",
    )

    leaks = "clients' own models, whole"
    no_texts = NO_NOISE

    uses = ("average", "oca", "finetune", "noise")
    auto = {"average.weights": "uniform"}

    dml: bool = True
    """Whether deep mutual learning is on; false: the copy learns from θ_i, not from labels."""
    selective: bool = True
    """Whether clients with the global architecture skip DML; false: all clients use DML."""
    skip_share: Annotated[float, Field(ge=-1, le=1)] = -1.0
    """Share of the clients that take the global architecture and skip DML; below 0: ``selective``
    decides."""
    aggregate: bool = True
    """Whether the server averages the copies; false: it starts from the previous θ_g."""
    distill: bool = True
    """Whether the server distils on noise."""
    kd_loss: Literal["kl", "ce"] = "kl"
    """KD: KL divergence, or cross-entropy of soft outputs."""
    kd_weights: Literal["participants", "all", "uniform"] = "participants"
    """Teachers' weights in equation 3: n_i over participants, n_i over all clients, or equal."""
    stale_broadcast: bool = False
    """Whether only selected clients receive the new θ_g; others continue from their last copy."""

    def check(self, config: Config) -> None:
        super().check(config)
        if config.buffered and self.stale_broadcast:
            why = 'mode = "buffered", in which only clients that train receive a model'
            raise not_allowed("fedorion.stale-broadcast", True, why, False)

    @property
    def averages_nothing(self) -> str:
        return "" if self.aggregate else "fedorion.aggregate = false"


@final
class Reply(protocol.ModelReply, kind="fedorion.Up"):
    """Reply with ``w`` = θ_gi."""

    local: StateDict | None  #: θ_i; None if the client skipped DML and θ_gi is θ_i
