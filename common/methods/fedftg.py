"""FedFTG: federated averaging, fine-tuned by a generator of hard samples.

Zhang et al., "Fine-tuning Global Model via Data-Free Knowledge Distillation for Non-IID Federated
Learning", 2022, Algorithm 1.

FedFTG uses FedProx's messages and client half (μ = 0: FedAvg); all clients train the global
architecture. In the census each client reports its number of samples n_k^y of each class y.

The server sets w ← Σ p_k w_k over the participants S_t as FedAvg does. It then runs ``iterations``
iterations with labels y ~ p(y) ∝ Σ_{k∈S_t} n_k^y (customised label sampling), z ~ N(0, 1),
x̃ = G(z, y; θ) and α_k^y = n_k^y / Σ_{j∈S_t} n_j^y (class-level ensemble). D is the network. The
teachers w_k are frozen, and so is w in a generator step:

    for each k, one step:   θ ← θ − β ∇ [− L_md + λ_cls L_cls + λ_dis L_dis / |S_t|]
        L_md  = mean of α_k^y |D(x̃; w_k) − D(x̃; w)|            w and w_k differ,
        L_cls = mean of α_k^y CE(D(x̃; w_k), y)                  w_k predicts y,
        L_dis = exp(−1/Q² Σ_ij ‖x̃_i − x̃_j‖ · ‖z_i − z_j‖)       images are diverse;
    ``student-steps`` steps: w ← w − η_s ∇ Σ_k mean of α_k^y CE(σ(D(x̃; w_k)), σ(D(x̃; w)))

The server keeps θ across rounds.

Privacy: the server receives the class counts of every client (``share-counts = true``), and the
images of a good generator resemble the clients' data.

Deviations:
- L_md is a KL divergence in the paper. This implementation uses the distance of the logits, as the
  released code does.
- G is DAFL's generator with input (z, one-hot y). It ends in a sigmoid and the normalisation of the
  data; that of the released code ends in tanh and BatchNorm.
- The moments of Adam and SGD restart in every round.
- Generated images do not change w's BatchNorm statistics, which stay the clients' mean. w uses the
  statistics of the generated batch, the teachers their running ones (``kd-teacher-bn``).
- The learning rate does not decay over rounds.
- Every step draws new z and y. The released code draws them once for all steps of an iteration
  (``draw = "iteration"``).
- Labels are sampled from p(y), as in the paper. In the released code the number of labels of each
  class in a round follows p(y) exactly, in a random order (``labels = "apportioned"``).
- In L_md the gradient reaches the generator through both networks, as in the paper. In the released
  code it passes through w alone (``detach-teacher``).
- The released code's L_cls is the mean of CE times the mean of α, not the mean of their products.
- The student's loss in the released code is also a mean over classes, which equals a ``server-lr``
  that is C times smaller here. Its SGD has no momentum. In its generator step w normalises with its
  running statistics.
- In asynchronous rounds, which the paper does not have, a teacher is the model that a client
  trained, of whatever version, and its weight does not depend on its age.
"""

from typing import Annotated, Literal, final

from pydantic import Field

from common.methods.fedavg import Averaging, Reply, Request
from common.settings.config import NO_TOKENS
from common.settings.section import AtLeastOne, Momentum, NonNegative, Positive

CLIENT = "fedprox"


@final
class Options(Averaging):
    classes_only = "its server generates samples of a class"

    facts = Averaging.facts.but(
        asynchronous="training",
        leaves="the same as `fedavg`; the census must tell class counts (`share-counts = true`)",
        infers="the same as with `fedavg`; the server's generator draws images that resemble the "
        "data",
    )

    leaks = "class counts in the census that weigh generated images"
    no_texts = NO_TOKENS

    uses = ("average", "oca", "finetune", "generator")

    mu: NonNegative = 0.0
    """μ, the weight of the clients' proximal term; 0: FedAvg's clients."""
    iterations: Annotated[int, Field(ge=0)] = 10
    """Iterations of generator and student in a round; 0: FedAvg."""
    student_steps: AtLeastOne = 5
    """Student steps in an iteration."""
    generated: Annotated[int, Field(ge=2)] = 50
    """Q, images in a batch."""
    lambda_cls: NonNegative = 1.0
    """λ_cls, the weight of L_cls."""
    lambda_dis: NonNegative = 1.0
    """λ_dis, the weight of L_dis."""
    kd_teacher_bn: Literal["batch", "running"] = "running"
    """Statistics in the teachers' BatchNorm: those of the generated batch, or running ones."""
    draw: Literal["step", "iteration"] = "step"
    """Frequency of drawing z and y: for every step, or once for all steps of an iteration."""
    labels: Literal["sampled", "apportioned"] = "sampled"
    """y: independent draws from p(y), or exact shares of a round's labels in a random order."""
    detach_teacher: bool = False
    """Whether the generator's gradient of L_md passes through the student alone."""
    server_lr: Positive = 0.01
    """η_s, the learning rate of w's SGD."""
    server_momentum: Momentum = 0.9
    """Momentum of w's SGD."""
