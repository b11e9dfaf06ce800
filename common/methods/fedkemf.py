"""FedKEMF: clients send a small knowledge network; the server distils the ensemble of its copies.

Yu, Qian, Jannesari, "Resource-aware Federated Learning using Knowledge Extraction and Multi-model
Fusion", 2022.

Client k stores its own model θ_k of any architecture across rounds, and receives a copy w_k of the
knowledge network w (the global architecture). Both learn from its samples (x, y) and from each
other, with z_k = f(x; θ_k) and z = f(x; w_k):

    L_k = CE(z_k, y) + D(z → z_k)        θ_k ← θ_k − η ∇L_k
    L   = CE(z, y)   + D(z_k → z)        w_k ← w_k − η ∇L

D(a → b) is KL(σ(a) ‖ σ(b)) with the softmax σ and without gradient for the teacher a
(``dml = "mse"``: the mean square of a − b). ``order = "joint"``: both losses use the same two
forward passes. ``order = "sequential"``: on each batch θ_k steps first, and w_k then learns from
the updated θ_k. The client sends only w_k.

The server uses public images A_t, which clients do not need. The prediction of the ensemble is

    p(x) = 1/|S_t| Σ_{k∈S_t} σ(f(x; w_k) / T)       (``ensemble = "mean"``)

with all w_k in evaluation mode. ``"max"``: the largest probability of each class, divided by the
sum over classes. ``"vote"``: the share of the w_k that predict the class. The server averages no
weights and continues from its w:

    w ← w − η_s ∇ KL(p(x) ‖ σ(f(x; w) / T))

``labels = true`` uses the released code's loss, ½ CE(f(x; w), y) + ½ T² mean (p(x) −
σ(f(x; w) / T))², with p at temperature 1. The public images must have labels of the task's classes
(``data.public`` or a data set of the same classes). A federation without labelled data at the
server cannot use it.

``public.learn = false`` is the control in which w never changes.

The request (w) and the reply (w_k) are those of LWN: 4 P bytes each way for the P numbers of the
knowledge network, as in FedAvg with that network.

Deviations, with their switches:
- The paper uses KL in both directions. The released code uses the mean square of logits
  (``dml = "mse"``), θ_k first, then w_k (``order = "sequential"``).
- The released code stops no gradient and clears gradients once before both steps, so the step of
  w_k also contains the gradient of L_k. Here each network follows its own loss only.
- In the released code the learning rates of clients and server follow half a cosine over the epochs
  of a round. Here this exists for the server (``public.anneal = true``), not for the clients.
- The code draws 5,000 training images with their labels in each round (``public.subset = 5000``,
  ``labels = true``) and sets T = 20 (``temperature``). FedORION's comparison uses unlabelled
  images and KL, as we do by default, at T = 1.
- The released code has the mean alone; the paper describes "max" and "vote" without formulas.
- In asynchronous rounds, which the paper does not have, a teacher is the model that a client
  trained, of whatever version, and its weight does not depend on its age.
"""

from typing import Literal, final

from common.methods.fedavg import Reply, Request
from common.settings.facts import Facts
from common.settings.section import Positive
from common.techniques.public_set import OnPublicSet
from common.training.task import Task


@final
class Options(OnPublicSet):
    """Options of FedKEMF. Request: the knowledge network w; reply: the trained copy w_k."""

    facts = Facts(
        asynchronous="models",
        down="the knowledge network w",
        up="the knowledge network w",
        kept="θ_k, whole",
        sends="a small network",
        leaves="the trained copy of the knowledge network; the own model stays with the client",
        infers="the same as with `fedavg`, of the knowledge network, which the server also asks "
        "about its public images",
        whole="w",
        own="θ_k",
        part="part",
        rounds="many",
        public="server",
        networks="own",
    )

    leaks = "single clients' networks that predict public images"
    auto = {"public.lr": 0.001}

    dml: Literal["kl", "mse"] = "kl"
    """Distance between a client's two networks: KL divergence, or mean square of logits."""
    order: Literal["joint", "sequential"] = "joint"
    """Order of the two networks' steps: at once, or the client's own model first."""
    ensemble: Literal["mean", "max", "vote"] = "mean"
    """Rule that combines the softmaxes of the knowledge networks on the server."""
    temperature: Positive = 1.0
    """T of the server's softmaxes; 20 in the released code."""
    labels: bool = False
    """Whether the server also trains on labels of the public images."""

    @property
    def mean_predictions(self) -> bool:
        return self.ensemble == "mean"

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        if self.labels:
            self.check_labels(task.config, "labels = true")
