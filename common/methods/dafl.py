"""DAFL: data-free distillation of one model into another, as compared in Table IV of FedKF.

Chen et al., "Data-Free Learning of Student Networks", 2019, with the losses of FedKF (eq. 2-6).

The clients train the teacher w with FedAvg. A single client that has all data gives the centralised
setting of the table. The server has no data. After round t it distils w into a student v with a
generator g(θ; ·):

    for each of n steps, z ~ N(0, I), x̂ = g(θ; z):
        v ← v − η_v ∇ KL(h(w; x̂) ‖ h(v; x̂))
        θ ← θ − β ∇ [L_IE + λ₁ L_OH + λ₂ L_A](w)            by Adam

The run's model is the student; the server also scores the teacher.

Deviations: teacher and student have the same architecture, as in Table IV. The teacher trains in
every round, and the server distils the student after each round from ``start`` on. The adversarial
term of FedKF's clients is off (``generator.adversarial``), because equation 5 has no such term.
In asynchronous rounds the server trains for the share of the n steps that a step has of a round's
clients.
FedKF's Table IV uses β = 0.2 and λ = {0.2, 0.02} on EMNIST, β = 0.02 and λ = {0.01, 0.002} on
CIFAR.
"""

from typing import Annotated, final

from pydantic import Field

from common.methods.fedavg import AVERAGED, Averaging, Reply, Request
from common.settings.config import NO_TOKENS
from common.settings.section import AtLeastOne, Momentum, Positive

CLIENT = "fedavg"


@final
class Options(Averaging):
    classes_only = "its server generates samples of a class"

    facts = Averaging.facts.but(
        asynchronous="mean",
        whole="the student, and w (`teacher`)",
        infers="the same as with `fedavg`; the server also draws images from the average",
    )

    no_texts = NO_TOKENS

    uses = (*AVERAGED, "generator")

    start: AtLeastOne = 1
    """First round after which the server distils."""
    server_steps: AtLeastOne = 100
    """n, distillation steps after each round; 2000 in the experiment for Table IV of FedKF."""
    server_batch_size: Annotated[int, Field(ge=2)] = 128
    """Generated images in a distillation step."""
    student_lr: Positive = 0.01
    """η_v, the learning rate of the student's SGD."""
    student_momentum: Momentum = 0.9
    """Momentum of the student's SGD."""
