"""FedDF: ensemble distillation for model fusion.

Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning",
NeurIPS 2020, Algorithms 1 and 3.

The server holds one prototype w_a for each architecture a of the clients, and unlabelled public
images, which clients do not need. Round t: client k receives the prototype of its architecture,
trains it as in FedAvg (CE on its own samples) and returns w_k. The server averages the clients of
each architecture as FedAvg does, and starts the distillation from this mean:

    w_a ← Σ_{k∈S_t, a_k = a} p_k w_k
    w_a ← w_a − η_s ∇ KL(σ(1/|S_t| Σ_{k∈S_t} f(x; w_k) / T) ‖ σ(f(x; w_a) / T))

on batches x of the public images A_t. The models of all clients of the round are the teachers of
every prototype, in evaluation mode. f are logits, σ is the softmax, and the divergence is the mean
over the batch, without a factor T². An architecture without a client in S_t stays unchanged. The
clients store no state.

``average = "losses"`` averages the divergences from each teacher instead. The server minimises
KL(1/|S_t| Σ_k σ(f(x; w_k) / T) ‖ σ(f(x; w_a) / T)) and writes this value to the journal. It has the
same gradient; the two values differ by a term that does not depend on the student.

``average.across = "none"`` is Algorithm 1: every client trains the global architecture.
``public.learn = false`` is FedAvg within equal architectures. Under ``oca.aggregate = "on"`` the
server also distils the latest models of all clients into the prototypes of ŵ.

Each prototype is scored, and the mean of their accuracies is the run's accuracy. With several
prototypes their ensemble is scored too: the mean of their logits or softmaxes (``ensemble``).

The request (w_a) and the reply (w_k) are those of FedAvg: 4 P_a bytes each way for P_a numbers, as
under ``average.across = "same"``.

Deviations, with their switches:
- The paper trains until 1,000 steps bring no gain on labelled validation samples, at most 10,000
  steps, and keeps the best model. Here the server has no labels and makes ``public.epochs`` passes
  over A_t, without early stopping.
- The released code decays the learning rate as half a cosine over its 10,000 steps.
  ``public.anneal = true`` does this over the steps of a round.
- The released code weights all clients equally (``average.weights = "uniform"``); the paper and the
  default weight by samples.
- The released code draws and augments public images for each step. Here each teacher predicts each
  image of A_t once in a round, without augmentation.
- The released code limits the gradient norm to 5; here there is no limit.
- The solver of the released code averages losses by default; the published commands average logits.
- The running statistics of a prototype's BatchNorm move to those of the public images, in the
  released code too. ``public.protect-running-stats = true`` keeps the statistics of the mean.
- FedORION's comparison uses SGD with learning rate 0.001 and momentum 0.9 (``public.optimizer``).
- In asynchronous rounds, which the paper does not have, a teacher is the model that a client
  trained, of whatever version, and its weight does not depend on its age.
"""

from typing import Literal, final

from common.methods.fedavg import Averaging, Reply, Request
from common.settings.config import not_allowed
from common.settings.section import Positive
from common.techniques.public_set import OnPublicSet
from common.training.task import Task

CLIENT = "fedavg"


@final
class Options(OnPublicSet, Averaging):
    facts = Averaging.facts.but(
        asynchronous="training",
        down="θ_k, within an architecture",
        up="θ_k, within an architecture",
        leaves="the same as `fedavg`, of the client's own architecture",
        infers="the same as with `fedavg`; the server also asks each client's model about its "
        "public images",
        whole="each architecture, their mean and `ensemble`",
        public="server",
        networks="own",
    )

    objectives = ("classes", "labels")
    leaks = "single clients' models that predict public images"
    uses = ("average", "oca", "finetune", "public")
    auto = {"average.across": "same", "public.optimizer": "adam", "public.lr": 0.001}
    schemes = ("same", "none")

    average: Literal["logits", "losses"] = "logits"
    """Quantity averaged over the teachers: their logits, or the student's divergences from them."""
    temperature: Positive = 1.0
    """T of the teachers' and the student's softmax."""
    ensemble: Literal["logits", "softmax"] = "logits"
    """Quantity that the scored ensemble averages over the prototypes."""

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        if self.ensemble != "logits" and not task.objective.one_each:
            raise not_allowed("feddf.ensemble", self.ensemble, task.objective.name, "logits")

    @property
    def mean_predictions(self) -> bool:
        """True: the server averages the teachers' predictions, so ``public.robust`` applies."""
        return True
