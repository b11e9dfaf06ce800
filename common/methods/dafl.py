"""DAFL: data-free distillation of one model into another, as FedKF shows it in its Table IV.

Chen et al., "Data-Free Learning of Student Networks", 2019, with the losses of FedKF (eq. 2-6).

The clients train the teacher w as in FedAvg (one client that owns everything: centralised, as in
the table). The server has no data. After round t it distils w into a student v by a generator
g(θ; ·):

    for each of n steps, z ~ N(0, I), x̂ = g(θ; z):
        v ← v − η_v ∇ KL(h(w; x̂) ‖ h(v; x̂))
        θ ← θ − β ∇ [L_IE + λ₁ L_OH + λ₂ L_A](w)            by Adam

The run's own model is the student; the teacher is scored beside it.

Deviations: teacher and student have one architecture, as in Table IV. The teacher is trained
further in every round, and the student follows it; ``start`` is the first round that distils. The
adversarial term of FedKF's clients is off (``generator.adversarial``): equation 5 has none. FedKF's
Table IV used β = 0.2 and λ = {0.2, 0.02} on EMNIST, 0.02 and {0.01, 0.002} on CIFAR.
"""

from typing import Annotated, final

from pydantic import Field

from common.methods.fedavg import AVERAGED, Averaging, Down, Up
from common.section import AtLeastOne, Momentum, Positive

CLIENT = "fedavg"


@final
class Options(Averaging):
    uses = (*AVERAGED, "generator")

    start: AtLeastOne = 1
    """First round after which the server distils."""
    server_steps: AtLeastOne = 500
    """n, steps after each round."""
    server_batch_size: Annotated[int, Field(ge=2)] = 128
    """Generated images in a step."""
    student_lr: Positive = 0.01
    """η_v, of SGD."""
    student_momentum: Momentum = 0.9
    """Momentum of the student's SGD."""
