"""FedL2G: the server learns guiding vectors that make local training lower the clients' losses.

Zhang, Liu, Hua, Wang, Song, Xue, Ma, Cao, Guan, "Adaptive Guidance for Local Training in
Heterogeneous Federated Learning", 2024 (arXiv 2410.06490), Algorithm 1. HtFLlib calls the two
variants FedL2G-l (``guide = "logits"``) and FedL2G-f (``"features"``).

Client k has a private model θ_k of any architecture. The server has one vector v_c for each class,
of m numbers: as many as there are classes, or as features K, which are then equal for all
architectures (one architecture, or ``feature-dim``). v is drawn from N(0, 1). The first
``quiz-batches`` · ``train.batch-size`` samples of a client are its quiz set, on which it never
trains. With the logits or features u(x; θ), the loss of a batch is

    L(θ, v) = CE(f(x; θ), y) + λ mean (u(x; θ) − v_y)²

Round t: each selected client trains θ_k on L(θ_k, v), except in the first ``warm-up`` rounds. Then,
in every round, it takes one batch and sends

    g = ∂/∂v CE_quiz(θ_k − η ∇_θ L(θ_k, v))

for the classes in the batch, with the learning rate η. θ_k itself is not moved. With
q = ∇CE_quiz(θ') at θ' = θ_k − η ∇_θ L, this is exactly −η ∂/∂v ⟨∇_θ L(θ_k, v), q⟩. The server takes
the mean over the clients that sent the row of a class, clips its norm, and sets

    v ← v − η_s g

Own models are scored. Before the end of the warm-up they are the clients' first draws. λ = 0 is
local training on the samples outside the quiz set.

Bytes: 4Cm + C down, 4Cm + 8C up, for each client and round.

Deviations:
- The meta step has the formula above, which is the derivative through one step of plain SGD. The
  released code differentiates through the step with a second copy of the network.
- The whole quiz set is one batch. The released code takes batches of ``train.batch-size`` and
  averages their losses, which differs through BatchNorm only. As there, BatchNorm normalises by
  batches; the statistics of θ_k stay.
- The released code clips the gradient norm of θ_k at 100 (``train.clip = 100``).
- In asynchronous rounds, which the paper does not have, a gradient counts in one step, times its
  weight by age. A table of the newest ones would apply each of them several times.
"""

from collections.abc import Iterable
from typing import Annotated, Literal, final

from pydantic import Field

from common.settings.config import Config
from common.settings.section import AtLeastOne, NonNegative
from common.techniques.class_table import RowOptions, TableReply, TableRequest
from common.techniques.features import feature_width
from common.training.task import Task

__all__ = ["Options", "TableReply", "TableRequest"]


@final
class Options(RowOptions):
    """Options of FedL2G. Request: the vectors v; reply: the rows of g."""

    facts = RowOptions.facts.but(
        asynchronous="mean",
        down="a vector for each class",
        up="its gradient",
        sends="gradients for its classes",
        leaves="the gradient of the server's vectors on one batch and the quiz set, a row for "
        "each class in the batch",
        infers="which classes it has; how its private model errs on them. A gradient of few "
        "samples can tell much of them, but the layers that it passed stay with the client",
    )

    leaks = "gradients of single clients by class"

    guide: Literal["logits", "features"] = "logits"
    """Outputs u that the vectors guide."""
    weight: NonNegative = 1.0
    """λ, the weight of the distance to the vectors."""
    warm_up: Annotated[int, Field(ge=0)] = 50
    """First rounds in which only the server's vectors learn."""
    quiz_batches: AtLeastOne = 1
    """Size of a client's quiz set, in batches of train.batch-size samples."""
    server_lr: NonNegative = 0.0
    """η_s, learning rate of the vectors; 0: 0.1 for logits, 100 for features."""
    server_clip: NonNegative = 100.0
    """Largest norm of the vectors' mean gradient; 0: no clipping."""

    def check(self, config: Config) -> None:
        super().check(config)
        if self.warm_up >= config.run.rounds:
            raise ValueError(
                f"fedl2g.warm-up = {self.warm_up} is not allowed: no client would train in "
                f"rounds = {config.run.rounds}; it should be below that"
            )

    @property
    def rate(self) -> float:
        """η_s."""
        return self.server_lr or (0.1 if self.guide == "logits" else 100.0)

    def width(self, task: Task, specs: Iterable[str]) -> int:
        return task.num_classes if self.guide == "logits" else feature_width(task, specs)
