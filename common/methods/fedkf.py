"""FedKF: global-local knowledge fusion.

Zhou et al., "Handling Data Heterogeneity in Federated Learning via Knowledge Distillation and
Fusion", IEEE Internet of Things Journal, 2023: Algorithm 1, equations 2-8.

The server keeps the model that each client uploaded last. Round t:

    client k ∈ S_t, from w (ACA) and ŵ (OCA): for each batch (x, y) and z ~ N(0, I), x̂ = g(θ_k; z),
        θ_k ← θ_k − β ∇[L_IE + λ₁ L_OH + λ₂ L_A]        on the answers of the frozen teacher ŵ (2-5)
        w_k ← w_k − η ∇[CE(h(w_k; x), y) + γ KL(h(ŵ; x̂) ‖ h(w_k; x̂))]                        (6-8)
    w ← Σ_{k∈S_t} n_k w_k / Σ n_k                    active clients aggregated (ACA), T1
    ŵ ← the same over the last uploads of all        overall clients aggregated (OCA), T1

In round 1 there is no teacher: cross-entropy only. The client sends w_k and nothing else; θ_k and
its Adam moments are its own, and last. All generators start from one θ.

Two runs give the paper's four variants, since both final models are scored:
``teacher = "oca"`` FedKF (OCA) and FedKF (ACA); ``teacher = "aca"``, in which w itself teaches and
no ŵ is sent, FedKF- (OCA) and FedKF- (ACA). The run's own model is ŵ.

``generator-at = "server"`` is the other approach of section IV-A, which the authors found much
worse: before round t the server trains one generator on the same teacher, ``generator-steps`` steps
of ``train.batch-size`` images, and sends its θ, which stands still at the clients and serves all of
them. The adversarial term, where it is on, then takes w in place of the students, which start from
it. θ and its moments go on over the rounds.

Deviations, with their switches. The released code differs from the paper; we default to the code:
- Algorithm 1 updates the generator first; the code the student, and then the generator on the same
  images (``generator.update-order = "student"``). ``"generator"`` draws the images anew from the
  same z after the generator's step.
- L_IE is 1 − H/log C (``generator.ie-norm``; false: −H, equation 3).
- L_A is the mean of |f̂| (``generator.act-reduction = "mean"``); ``"sum"`` is the L1 norm of
  equation 4.
- On CIFAR the code subtracts γ KL(h(ŵ; x̂) ‖ h(w_k; x̂)) from the generator's loss
  (``generator.adversarial = "cifar"``).
- In Algorithm 1 w⁰ stands for clients that have not uploaded yet; the code leaves them out of ŵ
  (``oca.init = "uploaded"``).
- The code gives every client the same number of steps, in full batches (``train.steps``; 0:
  ``train.epochs`` epochs, as the paper says).
- A student with BatchNorm, which the paper avoids, sees x̂ on the statistics of that batch and
  keeps its running ones for real images. Hence γ = 0 is FedAvg for every architecture.
"""

from typing import Literal, final

from common import protocol
from common.config import Config, not_allowed
from common.methods.fedavg import Averaging, Up
from common.records import StateDict
from common.section import AtLeastOne, NonNegative


@final
class Options(Averaging):
    leaks = "cached uploads that are used again"
    uses = ("average", "oca", "generator")
    auto = {"oca.aggregate": "on", "generator.adversarial": "cifar"}

    gamma: NonNegative = 1.0
    """γ, the weight of distillation."""
    teacher: Literal["oca", "aca"] = "oca"
    """``oca``: FedKF; ``aca``: FedKF-, with half of the downlink."""
    generator_at: Literal["client", "server"] = "client"
    """Who trains generators: every client its own, while it distils, or the server one for all."""
    generator_steps: AtLeastOne = 100
    """Steps of the server's generator before each round."""

    def check(self, config: Config) -> None:
        super().check(config)
        if config.oca.aggregate == "off":
            raise not_allowed("oca.aggregate", "off", 'method = "fedkf", whose model is ŵ', "on")


@final
class Down(protocol.Model):
    """``w``: ACA, where the student starts."""

    w_hat: StateDict | None  #: ŵ, OCA; None in round 1 and where w teaches
    theta: StateDict | None  #: θ of the server's generator; None in round 1 and where clients train
