"""FedKF: global-local knowledge fusion.

Zhou et al., "Handling Data Heterogeneity in Federated Learning via Knowledge Distillation and
Fusion", IEEE Internet of Things Journal, 2023: Algorithm 1, equations 2-8.

The server stores the latest model of each client. Round t:

    client k ∈ S_t, from w (ACA) and ŵ (OCA): for each batch (x, y) and z ~ N(0, I), x̂ = g(θ_k; z),
        θ_k ← θ_k − β ∇[L_IE + λ₁ L_OH + λ₂ L_A]        on outputs of the frozen teacher ŵ (2-5)
        w_k ← w_k − η ∇[CE(h(w_k; x), y) + γ KL(h(ŵ; x̂) ‖ h(w_k; x̂))]                        (6-8)
    w ← Σ_{k∈S_t} n_k w_k / Σ n_k                    active clients aggregated (ACA), T1
    ŵ ← the same mean over all latest models         overall clients aggregated (OCA), T1

Round 1 has no teacher and uses cross-entropy only. The client sends only w_k. It stores θ_k and its
Adam moments across rounds. All generators start from the same θ.

Two runs give the paper's four variants, because both final models are scored. ``teacher = "oca"``
gives FedKF (OCA) and FedKF (ACA). ``teacher = "aca"`` gives FedKF- (OCA) and FedKF- (ACA): w is the
teacher and no ŵ is sent. The run's model is ŵ.

``generator-at = "server"`` is the other approach of section IV-A, which is much worse according to
the authors. Before round t the server trains one generator with the same teacher, for
``generator-steps`` steps of ``train.batch-size`` images. It sends θ to all clients, which do not
train it. The adversarial term, if it is on, uses w instead of the students, which start from w. θ
and its moments are kept across rounds.

Deviations, with their switches. The released code differs from the paper; the defaults follow the
code:
- Algorithm 1 updates the generator first. The code updates the student first, and then the
  generator on the same images (``generator.update-order = "student"``). ``"generator"`` computes
  the images again from the same z after the generator's step.
- L_IE is 1 − H/log C (``generator.ie-norm``; false: −H, equation 3).
- L_A is the mean of |f̂| (``generator.act-reduction = "mean"``); ``"sum"`` is the L1 norm of
  equation 4.
- On CIFAR the code subtracts γ KL(h(ŵ; x̂) ‖ h(w_k; x̂)) from the generator's loss
  (``generator.adversarial = "cifar"``).
- Algorithm 1 uses w⁰ for clients without an upload; the code omits them from ŵ
  (``oca.init = "uploaded"``).
- The code trains every client for the same number of steps, in full batches (``train.steps``; 0:
  ``train.epochs`` epochs, as in the paper).
- The paper avoids BatchNorm. A student with BatchNorm normalises x̂ with the statistics of that
  batch, and only real images update its running ones. So γ = 0 is FedAvg for every architecture.
- In asynchronous rounds, which the paper does not have, ŵ is the mean of the models that clients
  trained, of whatever version.
"""

from typing import Literal, final

from common.exchange import protocol
from common.exchange.records import StateDict
from common.methods.fedavg import Averaging, Reply
from common.settings.config import NO_TOKENS, Required
from common.settings.section import AtLeastOne, NonNegative


@final
class Options(Averaging):
    classes_only = "its server generates samples of a class"

    facts = Averaging.facts.but(
        asynchronous="mean",
        down="w and ŵ",
        up="w_k",
        kept="its generator of images",
        leaves="the same as `fedavg`; the generator stays with the client (under `generator-at = "
        '"server"` there is none but the server\'s)',
        infers="the same as with `fedavg`. The server keeps every client's last upload, as in "
        'every averaging method with `oca.aggregate = "on"`',
        whole="ŵ (`oca`) and w (`aca`)",
    )

    leaks = "cached uploads that are used again"
    no_texts = NO_TOKENS

    uses = ("average", "oca", "finetune", "generator")
    auto = {"oca.aggregate": "on", "generator.adversarial": "cifar"}

    gamma: NonNegative = 1.0
    """γ, the weight of distillation."""
    teacher: Literal["oca", "aca"] = "oca"
    """Teacher model. ``oca``: ŵ, FedKF; ``aca``: w, FedKF-, with half of the downlink bytes."""
    generator_at: Literal["client", "server"] = "client"
    """Place of generator training: every client trains its own, or the server one for all."""
    generator_steps: AtLeastOne = 100
    """Steps of the server's generator before each round."""

    requires = {"oca.aggregate": Required("on", why=", whose model is ŵ")}


@final
class Request(protocol.ModelRequest, kind="fedkf.Down"):
    """Request with ``w``, the ACA model that the student starts from."""

    w_hat: StateDict | None  #: ŵ, the OCA model; None in round 1 and if w is the teacher
    theta: StateDict | None  #: θ of the server's generator; None in round 1 and if clients train θ
