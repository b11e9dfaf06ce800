"""FedKEMF: a small knowledge network travels, and an ensemble of its copies teaches it.

Yu, Qian, Jannesari, "Resource-aware Federated Learning using Knowledge Extraction and Multi-model
Fusion", 2022.

Client k holds its own model θ_k of any architecture, for good, and gets a copy w_k of the knowledge
network w (the global architecture). They learn from its samples (x, y) and from each other, with
z_k = f(x; θ_k) and z = f(x; w_k):

    L_k = CE(z_k, y) + D(z → z_k)        θ_k ← θ_k − η ∇L_k
    L   = CE(z, y)   + D(z_k → z)        w_k ← w_k − η ∇L

D(a → b) is KL(σ(a) ‖ σ(b)), the teacher a detached, σ the softmax (``dml = "mse"``: the mean square
of a − b). ``order = "joint"``: both from the same two forward passes. ``order = "sequential"``: on
each batch θ_k steps first, and w_k learns from it as it then is. Only w_k goes back.

Server, on public images A_t of which clients need to know nothing, the ensemble's opinion

    p(x) = 1/|S_t| Σ_{k∈S_t} σ(f(x; w_k) / T)       (``ensemble = "mean"``)

all w_k in evaluation mode; or the largest of them for each class, divided by their sum (``"max"``),
or the share of the w_k that choose the class (``"vote"``). w goes on from where it was, nothing is
averaged:

    w ← w − η_s ∇ KL(p(x) ‖ σ(f(x; w) / T))

``labels = true`` is the released code's loss, for public images whose classes are known and are
the task's, ½ CE(f(x; w), y) + ½ T² mean (p(x) − σ(f(x; w) / T))², p at temperature 1. It needs
``data.public`` or a data set of the same classes, and is what no federation without labelled data
at the server has.

``public.learn = false`` is the control in which w never changes.

Down w and up w_k are as in LWN: 4 P bytes each way for the P numbers of the knowledge network, as
FedAvg's of that network.

Deviations, with their switches:
- The paper has KL both ways; the released code the mean square of logits (``dml = "mse"``), θ_k
  first, then w_k (``order = "sequential"``). It detaches nothing and clears gradients once before
  both steps, so w_k's step also follows the gradient of L_k; ours never do.
- In the code clients' and server's rates fall within a round, as half a cosine over its epochs: at
  the server over its steps under ``public.anneal = true``, at the clients not at all.
- The code draws 5,000 training images with their labels in each round (``public.subset = 5000``,
  ``labels = true``) and sets T = 20 (``temperature``). FedORION's comparison uses unlabelled
  images and KL, as we do by default, at T = 1.
- The code has the mean alone; for "max" and "vote" the paper gives words.
"""

from typing import Literal, final

from common.methods.fedavg import Down, Up
from common.public_set import OnPublicSet
from common.section import Positive
from common.task import Task


@final
class Options(OnPublicSet):
    """Messages: w, the knowledge network, and w_k, trained from it."""

    leaks = "single clients' networks that are asked about public images"
    auto = {"public.lr": 0.001}

    dml: Literal["kl", "mse"] = "kl"
    """How far a client's two networks are apart: KL divergence, or mean square of logits."""
    order: Literal["joint", "sequential"] = "joint"
    """Both networks step at once, or the client's own first."""
    ensemble: Literal["mean", "max", "vote"] = "mean"
    """What the server makes of the knowledge networks' softmaxes."""
    temperature: Positive = 1.0
    """T of the server's softmaxes; 20 in the released code."""
    labels: bool = False
    """The server also learns the public images' classes, where it knows them."""

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        if self.labels:
            self.check_labels(task.config, "labels = true")
