"""FedFTG: federated averaging, fine-tuned by a generator of hard samples.

Zhang et al., "Fine-tuning Global Model via Data-Free Knowledge Distillation for Non-IID Federated
Learning", 2022, Algorithm 1.

Clients are FedProx's (its messages and its client half; μ = 0: FedAvg's), all of the global
architecture; before round 1 each tells how many samples n_k^y of each class y it holds.

Server, from the participants S_t: w ← Σ p_k w_k as FedAvg, then ``iterations`` times, with labels
y ~ p(y) ∝ Σ_{k∈S_t} n_k^y (customised label sampling), z ~ N(0, 1), x̃ = G(z, y; θ) and
α_k^y = n_k^y / Σ_{j∈S_t} n_j^y (class-level ensemble), where D is the network and the teachers w_k
and, in a generator step, w stand still:

    for each k, one step:   θ ← θ − β ∇ [− L_md + λ_cls L_cls + λ_dis L_dis / |S_t|]
        L_md  = mean of α_k^y |D(x̃; w_k) − D(x̃; w)|                    find what w does not know,
        L_cls = mean of α_k^y CE(D(x̃; w_k), y)                          but w_k does,
        L_dis = exp(−1/Q² Σ_ij ‖x̃_i − x̃_j‖ · ‖z_i − z_j‖)               everywhere;
    ``student-steps`` steps: w ← w − η_s ∇ Σ_k mean of α_k^y CE(σ(D(x̃; w_k)), σ(D(x̃; w)))

The server keeps θ over rounds.

Privacy: the class counts of every client are known to the server (``share-counts = true``), and a
good generator's images resemble the clients' data.

Deviations:
- L_md is a KL divergence in the paper; the released code, and we, take the distance of the logits.
- G is DAFL's generator fed with (z, one-hot y), ending in a sigmoid and the data's normalisation;
  the released code's ends in tanh and BatchNorm.
- Adam's and SGD's moments begin anew in every round.
- Fakes leave no trace in w's BatchNorm statistics, which stay the clients' mean: w normalises by
  the fakes' own, the teachers by theirs (``kd-teacher-bn = "running"``).
- The learning rate does not decay over rounds.
- Every step draws z and y anew; the released code draws them once in an iteration, for all its
  steps (``draw = "iteration"``). It has as many labels of a class over a round as p(y) says, in a
  random order (``labels = "apportioned"``); we sample them from p(y), as the paper.
- In L_md the gradient reaches the generator through both networks, as in the paper; in the released
  code through w alone (``detach-teacher``).
- The released code's L_cls is the mean of CE times the mean of α, not the mean of their products.
- Its student's loss is a mean over classes too, as ours is at a ``server-lr`` C times smaller; its
  SGD has no momentum. In its generator step w normalises by its running statistics.
"""

from typing import Annotated, Literal, final

from pydantic import Field

from common.methods.fedavg import Averaging, Down, Up
from common.section import AtLeastOne, Momentum, NonNegative, Positive

CLIENT = "fedprox"


@final
class Options(Averaging):
    leaks = "class counts in the census that weigh generated images"
    uses = ("average", "oca", "generator")

    mu: NonNegative = 0.0
    """μ, the strength of the clients' proximal term; 0: FedAvg's clients."""
    iterations: Annotated[int, Field(ge=0)] = 10
    """Iterations of generator and student in a round; 0: FedAvg."""
    student_steps: AtLeastOne = 5
    """Steps of w in an iteration."""
    generated: Annotated[int, Field(ge=2)] = 50
    """Q, images in a batch."""
    lambda_cls: NonNegative = 1.0
    """λ_cls, the weight of L_cls."""
    lambda_dis: NonNegative = 1.0
    """λ_dis, the weight of L_dis."""
    kd_teacher_bn: Literal["batch", "running"] = "running"
    """BatchNorm of the teachers: the fakes' statistics, or their data's running ones."""
    draw: Literal["step", "iteration"] = "step"
    """How often z and y are drawn: for every step, or once for all steps of an iteration."""
    labels: Literal["sampled", "apportioned"] = "sampled"
    """y: independent draws from p(y), or the same shares of a round's labels in a random order."""
    detach_teacher: bool = False
    """In L_md the generator's gradient goes through the student alone."""
    server_lr: Positive = 0.01
    """η_s, of w's SGD."""
    server_momentum: Momentum = 0.9
    """Momentum of w's SGD."""
