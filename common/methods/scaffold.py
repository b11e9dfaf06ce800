"""SCAFFOLD: federated averaging with control variates against client drift.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
Algorithm 1 with option II.

Round t: the server sends w and its control variate c. Client k stores c_k (initially 0) and takes K
steps

    y ← y − η (∇L(y) − c_k + c)

It then sets c_k⁺ = c_k − c + (w − y_k) / (K η), and sends y_k and Δc_k = c_k⁺ − c_k. With N clients
in all, the server sets

    w ← w + η_g Σ_{k∈S_t} p_k (y_k − w),   c ← c + 1/N Σ_{k∈S_t} Δc_k

p_k is uniform unless ``average.weights = "samples"``. In round 1 all variates are 0, so the round
equals FedAvg.

If clients train their own architectures (``average.across``), N is, for each layer, the number of
clients that have it, and η_g is 1.

c is the mean of the c_k that the server has counted. A client whose reply was lost has changed its
c_k, but the server has not counted the change. The request therefore names the client's last
accepted round, and the client continues from its stored c_k of exactly that round.

Membership: c keeps the c_k of a client that leaves, as that of a client that is not selected. If a
client lost its c_k, the server sets c and all c_k to 0, because it has only their mean.

Deviations, with their switches:
- Only parameters have variates; BatchNorm buffers are averaged as in FedAvg.
- ``correction = "gradient"`` adds c − c_k to the gradient, as printed; ``"after"`` subtracts
  η (c − c_k) from the weights after the optimiser's step, as NIID-Bench does. Both are equal for
  SGD without momentum. Optimisers other than SGD rescale their gradients and need ``"after"``.
- With momentum ρ the K steps move the weights further than K η. ``divisor = "effective"`` divides
  by K̃ = (K − ρ (1 − ρ^K) / (1 − ρ)) / (1 − ρ) instead of K, as FedNTD's code does; ``"steps"`` is
  as printed. ``"auto"`` follows the correction: momentum multiplies a correction in the gradient,
  so its divisor is K̃; it does not multiply a correction after the step, so its divisor is K, as in
  NIID-Bench. With K̃ and ``"after"``, c_k is smaller than NIID-Bench's. With K and ``"gradient"``,
  c_k − c is multiplied by 1 − K̃/K in every round, which tends to −ρ/(1 − ρ) for large K. It
  diverges if ρ is above ½, so that pair is refused. Without momentum, and for optimisers other than
  SGD, K̃ = K. Nesterov momentum is ignored.
- Δc_k follows from w, c, K, η and y_k. The server recomputes it and refuses any other value, so
  that a client cannot change c independently of y_k. With ``average.robust``, Δc_k is combined like
  w, and c is no longer the mean of the c_k.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, final

from torch import Tensor

from common.exchange import protocol
from common.exchange.protocol import Round
from common.exchange.records import StateDict
from common.methods.fedavg import Averaging
from common.settings.config import EVERY, Config, Required, not_allowed
from common.settings.section import Positive
from common.training import optimise
from common.training.task import Task

LARGEST_MOMENTUM = 0.5
"""Largest ρ for which K̃/K stays below 2, so that dividing by K does not diverge."""


@final
class Options(Averaging):
    facts = Averaging.facts.but(
        down="w and a control variate",
        up="w and a control variate",
        kept="its control variate",
        sends="a network and its control variate",
        leaves="the same as `fedavg`, and Δc_k, the change of its control variate",
        infers="the same as with `fedavg`: Δc_k is the update over again, K and η being known. "
        "The server keeps of each client the last round whose reply it accepted, and tells it to "
        "that client alone. A Δc_k that does not follow from the weights sent is refused, so a "
        'malicious client moves c only as far as its weights move w; `average.robust = "median"` '
        'and `"trimmed"` bound both',
        networks="parts",
    )

    leaks = "changes of control variates in addition to the weights"
    auto = {"average.weights": "uniform"}
    requires = {
        "average.robust": Required(
            "none", "median", "trimmed", why=": control variates match no other update"
        )
    }
    schemes = ("none", "layerwise", "same")

    server_lr: Positive = 1.0
    """η_g, the server's step size towards the mean, for parameters."""

    objectives = EVERY
    correction: Literal["gradient", "after"] = "gradient"
    """Place of c − c_k: in the gradient, or in the weights after each step."""
    divisor: Literal["auto", "effective", "steps"] = "auto"
    """Divisor of w − y_k besides η: K̃, which includes momentum, or K; ``auto``: ``effective`` if
    the correction is in the gradient, ``steps`` if it is after the step."""

    def check(self, config: Config) -> None:
        super().check(config)
        if self.correction == "gradient" and not optimise.is_sgd(config.train):
            optimizer = f'train.optimizer = "{config.train.optimizer}"'
            raise not_allowed("scaffold.correction", "gradient", optimizer, "after")
        rho = config.train.momentum
        if self.correction == "gradient" and self.divisor == "steps" and rho > LARGEST_MOMENTUM:
            pair = f'scaffold.correction = "gradient" and train.momentum = {rho:g}, which diverge'
            raise not_allowed("scaffold.divisor", "steps", pair, "auto", "effective")
        across = config.average.across
        if self.server_lr != 1 and across != "none":
            why = f'average.across = "{across}"'
            raise not_allowed("scaffold.server-lr", self.server_lr, why, 1)

    @property
    def includes_momentum(self) -> bool:
        """Whether the divisor is K̃; otherwise it is K."""
        if self.divisor == "auto":
            return self.correction == "gradient"
        return self.divisor == "effective"

    def change(
        self, task: Task, t: int, n: int, request: Request, y: Mapping[str, Tensor]
    ) -> StateDict:
        """Return Δc_k = (w − y_k) / (K η) − c of a client with n samples, on the CPU."""
        count = task.effective_steps if self.includes_momentum else task.steps
        steps = count(n, request.steps)
        scale = steps * task.lr(t)
        return {name: (request.w[name] - y[name]) / scale - c for name, c in request.c.items()}


@final
class Request(protocol.ModelRequest, kind="scaffold.Down"):
    """Request with w and c."""

    c: StateDict  #: the server's control variate, for parameters
    accepted: Round  #: round of this client's last reply that the server counted into c; 0: none


@final
class Reply(protocol.ModelReply, kind="scaffold.Up"):
    """Reply with ``w`` = y_k and the change of the control variate."""

    dc: StateDict  #: Δc_k
