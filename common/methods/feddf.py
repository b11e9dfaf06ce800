"""FedDF: ensemble distillation for model fusion.

Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning",
NeurIPS 2020, Algorithms 1 and 3.

The server holds one prototype w_a for each architecture a of the clients, and unlabelled public
images, of which clients need to know nothing. Round t: client k is sent the prototype of its
architecture, trains it as FedAvg's clients do (CE on its own samples) and returns w_k. The server
takes for each architecture the mean of its own clients, as FedAvg, and goes on from there:

    w_a ← Σ_{k∈S_t, a_k = a} p_k w_k
    w_a ← w_a − η_s ∇ KL(σ(1/|S_t| Σ_{k∈S_t} f(x; w_k) / T) ‖ σ(f(x; w_a) / T))

on batches x of the public images A_t. All clients of the round teach every prototype, whatever
their architecture, in evaluation mode; f are logits, σ the softmax, the divergence a batch's mean,
without a factor T². An architecture without a client in S_t stays as it is. The clients keep
nothing.

``average = "losses"`` averages the divergences from each teacher instead. Its gradient is that of
KL(1/|S_t| Σ_k σ(f(x; w_k) / T) ‖ σ(f(x; w_a) / T)), which is what the server descends and the
journal tells; the mean of the losses is larger by what no student changes.

``average.across = "none"`` is Algorithm 1: everybody trains the global architecture.
``public.learn = false`` leaves FedAvg within equal architectures. Under ``oca.aggregate = "on"``
the prototypes of ŵ are taught too, by the latest uploads of all clients.

Scored: each prototype; their mean is the run's accuracy. Beside them, where there are several, the
ensemble of the prototypes: the mean of their logits, or of their softmaxes (``ensemble``).

Down w_a and up w_k are FedAvg's messages: 4 P_a bytes each way for P_a numbers, as under
``average.across = "same"``.

Deviations, with their switches:
- The paper trains until 1,000 steps bring no gain on labelled validation samples, at most 10,000,
  and keeps the best. The server has no labels here: it takes ``public.epochs`` passes over A_t.
  Stopping early is not there.
- The released code lets the rate fall as half a cosine over its 10,000 steps: over those of a round
  under ``public.anneal = true``.
- It weighs all clients alike (``average.weights = "uniform"``); the paper and we by samples. It
  draws and augments public images anew for each step; we ask each teacher once in a round about
  each image of A_t, as it is. It limits the norm of a gradient to 5; there is no limit here.
- Its solver averages losses unless told otherwise; the published commands average logits.
- BatchNorm's running statistics of a prototype move to those of the public images, in the released
  code too; ``public.protect-running-stats = true`` leaves them those of the mean.
- FedORION's comparison uses SGD with rate 0.001 and momentum 0.9 (``public.optimizer``).
"""

from typing import Literal, final

from common.methods.fedavg import Averaging, Down, Up
from common.public_set import OnPublicSet
from common.section import Positive

CLIENT = "fedavg"


@final
class Options(OnPublicSet, Averaging):
    leaks = "single clients' models that are asked about public images"
    uses = ("average", "oca", "public")
    auto = {"average.across": "same", "public.optimizer": "adam", "public.lr": 0.001}
    schemes = ("same", "none")

    average: Literal["logits", "losses"] = "logits"
    """What is averaged over the teachers: their logits, or the student's divergences from them."""
    temperature: Positive = 1.0
    """T, of the softmax on both sides."""
    ensemble: Literal["logits", "softmax"] = "logits"
    """What the ensemble that is scored averages over the prototypes."""
