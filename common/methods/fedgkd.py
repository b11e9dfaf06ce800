"""FedGKD: federated averaging with the global models of the past as a teacher.

Yao et al., "FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge Distillation",
2023 (arXiv 2107.00051), in the form of FedKF's comparison and in the authors' own.

Round t: the server keeps the last M global models and sends w and their mean w̄; client k, on its
own data, minimises

    CE(f(w_k; x), y) + γ/2 · s · KL(f(w̄; x)/T ‖ f(w_k; x)/T),    s = 1, or T² (``t-squared``)

and the server averages the w_k as FedAvg does. γ = 0 is FedAvg.

``wait-full``: distillation starts when the buffer holds M models (FedKF's released code: from round
M + 1); false: from round 2, with as many as there are (the authors' released code, γ/2 = 0.1).

Deviations: the buffer holds the models after each round, not the first, untrained one.
"""

from typing import Annotated, final

from pydantic import Field

from common import protocol
from common.methods.fedavg import AVERAGED, Averaging, Up
from common.records import StateDict
from common.section import NonNegative, Positive


@final
class Options(Averaging):
    uses = AVERAGED

    gamma: NonNegative = 0.2
    """γ; the loss has γ/2."""
    buffer: Annotated[int, Field(ge=1, le=100)] = 5
    """M, past global models."""
    wait_full: bool = True
    """Distillation starts when the buffer is full."""
    temperature: Positive = 1.0
    """T of both softmaxes."""
    t_squared: bool = False
    """The term is multiplied by T²."""


@final
class Down(protocol.Model):
    teacher: StateDict | None  #: w̄; None while there is none
