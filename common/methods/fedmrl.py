"""FedMRL: a client's own network and a small shared one learn a nested representation together.

Yi, Yu, Ren, Wang, Liu, Li, "Federated Model Heterogeneous Matryoshka Representation Learning",
NeurIPS 2024, section 3.

Client k stores its own network θ_k of any architecture, with K_k features f_k and a head h_k, and a
linear projector A_k from d₁ + K_k to K_k numbers. It receives a copy w_k of the small network w
(the global architecture), with d₁ ≤ K_k features f_w and a head h_w. On each batch (x, y) of its
samples, with the representation

    r = A_k [f_w(x); f_k(x)]

it minimises over θ_k, A_k and w_k together

    CE(h_k(r), y) + λ CE(h_w(r[:d₁]), y)

λ = 1 in the paper. It sends only w_k, and the server averages the copies with equal weights:

    w ← 1/|S_t| Σ_{k∈S_t} w_k

The client's own score is that of h_k(r), with the newest w; ``small`` under ``accuracies`` is that
of h_w(r[:d₁]). There is no global model, because w alone does not predict. The run's file of the
model has w. With λ = 0 and A_k = [0, 1] held fixed, the own networks are those of ``local`` up to
rounding.

The request (w) and the reply (w_k) are those of FedAvg: 4 P bytes each way for the P numbers of w.
``train.clip`` limits the gradients of θ_k, A_k and w_k separately.

Deviations, with their switches:
- d₁ and K_k are the networks' numbers of features, or all ``feature-dim``, as in the released code,
  where all are 500. HtFLlib pools w's features to 128 and all others to 512.
- The released code weights clients by their training, validation and test samples. Here and in
  HtFLlib the weights are equal (``average.weights = "samples"``: by training samples).
- HtFLlib does not store the trained projector, so that A_k starts every round from its first draw,
  and does not average buffers (``average.bn-buffers = false``).
- The released code keeps the trained networks of a round as one: each client's entry is a reference
  to the network that the next client trains, so its mean is w_k of the last client. Here it is the
  mean.
- The released code clips the gradient norm at 50 (``train.clip = 50``).
"""

from typing import final

from common.exchange.protocol import ModelReply as Reply
from common.exchange.protocol import ModelRequest as Request
from common.methods.fedavg import PredictorPart
from common.settings.config import EVERY, Required
from common.settings.section import NonNegative
from common.techniques.features import check_heads
from common.training.task import Task, global_spec

__all__ = ["Joined", "Options", "Reply", "Request"]


class Joined(PredictorPart):
    """Options of methods whose clients join w with networks of their own."""

    facts = PredictorPart.facts.but(networks="own", kept="θ_k, whole")

    requires = {
        "score.bn": Required("running", "batch", why=": clients score networks of their own")
    }


@final
class Options(Joined):
    """Options of FedMRL. Request: the small network w; reply: the trained copy w_k."""

    objectives = EVERY

    facts = Joined.facts.but(
        down="the small network w",
        up="the small network w",
        kept="θ_k, whole, with A_k",
        sends="a small network",
        leaves="the trained copy of the small network; the own network and the projector stay "
        "with the client",
        infers="the same as with `fedavg`, of the small network",
        own="θ_k and A_k with the newest w, by both heads",
    )

    auto = {"average.weights": "uniform"}

    weight: NonNegative = 1.0
    """λ, the weight of the loss of the small network's head."""

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        small = global_spec(task)
        check_heads(task, (small, *specs))
        d, *widths = (task.without_values(spec).head.in_features for spec in (small, *specs))
        for spec, width in zip(specs, widths, strict=True):
            if width < d:
                raise ValueError(
                    f'method = "{task.config.run.method}" needs networks with at least the '
                    f"features of the global one, but {small} has {d} and {spec} has {width}: set "
                    "global-model or feature-dim"
                )
