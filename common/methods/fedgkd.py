"""FedGKD: federated averaging with the mean of past global models as a teacher.

Yao et al., "FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge Distillation",
2023 (arXiv 2107.00051), in the form of FedKF's comparison and in the authors' own.

Round t: the server stores the last M global models and sends w and their mean w̄. Client k
minimises, on its own data,

    CE(f(w_k; x), y) + γ/2 · s · KL(f(w̄; x)/T ‖ f(w_k; x)/T),    s = 1, or T² (``t-squared``)

and the server averages the w_k as FedAvg does. γ = 0 is FedAvg.

``wait-full = true``: distillation starts when the buffer has M models (FedKF's released code: from
round M + 1). ``false``: distillation starts in round 2 with the models available so far (the
authors' released code, γ/2 = 0.1).

Deviations: the buffer has the models after each round, but not the initial, untrained model.
"""

from typing import Annotated, final

from pydantic import Field

from common.exchange import protocol
from common.exchange.records import StateDict
from common.methods.fedavg import AVERAGED, Averaging, Reply
from common.settings.section import NonNegative, Positive


@final
class Options(Averaging):
    facts = Averaging.facts.but(down="w; also the mean of past w")

    objectives = ("classes", "next-token")

    uses = AVERAGED

    gamma: NonNegative = 0.2
    """γ, twice the weight of the distillation."""
    buffer: Annotated[int, Field(ge=1, le=100)] = 5
    """M, the number of past global models in the teacher."""
    wait_full: bool = True
    """Whether distillation starts only when the buffer is full."""
    temperature: Positive = 1.0
    """T of both softmaxes."""
    t_squared: bool = False
    """Whether the distillation term is multiplied by T²."""


@final
class Request(protocol.ModelRequest, kind="fedgkd.Down"):
    """Request with w and the teacher."""

    teacher: StateDict | None  #: w̄; None before distillation starts
