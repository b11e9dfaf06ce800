"""FedMD: clients of any architecture learn from their mean prediction for public images.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS workshop on
federated learning for data privacy and confidentiality, 2019. Details missing in the paper follow
the released code (diogenes0319/FedMD_clean).

Client k stores a model θ_k of its own architecture, with logits f(θ_k; x) [C], across rounds.
Before its first round (transfer learning, "Train each party"):

    ``public-epochs`` epochs of CE on the labelled public set, then ``first-epochs`` on its own

Round t has two exchanges. A_t are ``public.subset`` public images, the same for all clients:

    up:      z_k = f(θ_k; A_t)
    server:  ẑ = 1/|S_t| Σ_{k∈S_t} z_k
    down:    ẑ
    digest:  ``public.epochs`` epochs of |f(θ_k; x) − ẑ(x)|, mean over samples and classes
    revisit: E epochs of CE(f(θ_k; x), y) on the client's own samples (``train.epochs``)

The same clients take part in both exchanges and continue from the weights that gave z_k. A client
that does not receive ẑ keeps its model unchanged until the next round.

There is no global model. θ_k is scored as in ``local``; the paper reports the mean of the clients'
accuracies on the whole test set (``whole-test``). Without digestion (``public.learn = false``) and
without training before round 1, θ_k equals that of ``local`` to the bit.

Released settings: Adam at 0.001 everywhere, also for [train]; A_t of 5000, digested once in batches
of 256; 25 first epochs in batches of 32, then 2 to 10 a round in batches of 5; 20 rounds.

Deviations, with their switches:
- ``public-epochs`` is 0. The paper uses up to 20 epochs on labelled public sets (MNIST for EMNIST
  letters, CIFAR-10 for CIFAR-100), with a head for the classes of both sets. Here a head has the
  task's classes, so a value above 0 needs a public set with the same classes. FedORION's paper
  omits this step for the same reason.
- Training before round 1 uses [train]'s optimiser and batch size without early stopping. The
  released code stops early based on the test set.
- The released code creates two Adam optimisers for each client and never renews them: one for the
  training before round 1 and the private epochs of all rounds, one for all digestions. Moments and
  step counts live across rounds (``optimizers = "kept"``). Here every training starts with a new
  optimiser, as in the other methods (``"fresh"``). Both have the current round's learning rate.
  The training on the public set has its own optimiser in either case. With two kept Adams a client
  stores five numbers for each weight instead of one.
- ``align = "mse"`` is the squared difference. ``"kl"``: clients send probabilities, ẑ is their
  mean, and the client minimises KL(ẑ ‖ softmax f).
- Logits are clipped to ± 65504.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from common.exchange import protocol
from common.exchange.predictions import Predictions
from common.losses.distillation import kl_from
from common.objectives import ONE_CLASS, Objective
from common.settings.config import OwnModels, Value
from common.settings.marks import Mark
from common.techniques.public_set import OnPublicSet
from common.training.task import Task


class PredictionExchange(OnPublicSet, OwnModels, ABC):
    """Options of methods whose clients send predictions for A_t and learn aggregated targets."""

    facts = OwnModels.facts.but(
        asynchronous="together",
        down="predictions for public images",
        up="predictions for public images",
        sends="predictions for public images",
        public="everybody",
    )

    public_epochs: Annotated[int, Field(ge=0), Mark.CLIENT_EPOCHS] = 0
    """Epochs on the labelled public set before a client's first round, with [train]'s optimiser and
    batch size; the public set must have the task's classes."""
    first_epochs: Annotated[int, Field(ge=0), Mark.CLIENT_EPOCHS] = 0
    """Epochs on the client's own samples before its first round, after the public epochs."""

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        if self.public_epochs:
            self.check_labels(task.config, f"public-epochs = {self.public_epochs}")

    @property
    @abstractmethod
    def probabilities(self) -> bool:
        """Whether messages carry probabilities; false: logits."""

    @abstractmethod
    def speak(self, z: Tensor, learnt: Objective = ONE_CLASS) -> Tensor:
        """Return the predictions [n, C] that a client sends for its logits z [n, C]."""

    @abstractmethod
    def distance(self, z: Tensor, target: Tensor, learnt: Objective = ONE_CLASS) -> Tensor:
        """Return the scalar loss between logits z and the server's targets, both [n, C]."""

    def private_epochs(self, t: int, epochs: int) -> int:
        """Return the epochs of round t on the client's samples; ``epochs``: ``train.epochs``."""
        return epochs

    @property
    def keeps_optimizers(self) -> bool:
        """Whether the state of a client's optimisers lives across rounds."""
        return False


@final
class Options(PredictionExchange):
    facts = PredictionExchange.facts.but(
        leaves='logits (`fedmd.align = "kl"`: class probabilities) for the round\'s public images,'
        " from the model as the round finds it",
        infers="the same as with `dl-sh`, without confidences; logits tell a little more. All "
        "clients get the mean, from which a client of two can compute the other's",
    )

    objectives = ("classes", "labels")
    leaks = "logits of public images"
    auto: ClassVar[Mapping[str, Value]] = {
        "public.optimizer": "adam",
        "public.lr": 0.001,
        "public.subset": 5000,
        "public.epochs": 1,
        "public.batch-size": 256,
    }

    first_epochs: Annotated[int, Field(ge=0), Mark.CLIENT_EPOCHS] = 5
    """Epochs on the client's own samples before its first round; 25 in the released code."""
    align: Literal["l1", "mse", "kl"] = "l1"
    """Digestion loss: absolute or squared differences of logits, or KL of probabilities."""
    optimizers: Literal["fresh", "kept"] = "fresh"
    """Optimisers of a client: new ones for every training, or two whose state is kept across
    rounds, for its own samples and for A_t, as in the released code."""

    @property
    def probabilities(self) -> bool:
        return self.align == "kl"

    @property
    def keeps_optimizers(self) -> bool:
        return self.optimizers == "kept"

    @property
    def mean_predictions(self) -> bool:
        return True

    def speak(self, z: Tensor, learnt: Objective = ONE_CLASS) -> Tensor:
        return learnt.shares(z) if self.probabilities else z

    def distance(self, z: Tensor, target: Tensor, learnt: Objective = ONE_CLASS) -> Tensor:
        if self.align == "kl":
            return learnt.from_shares(z, target)
        return (F.l1_loss if self.align == "l1" else F.mse_loss)(z, target)


@final
class Request(protocol.Request, kind="fedmd.Down"):
    """Request for predictions on A_t; it has no further content."""


@final
class Reply(Predictions, protocol.Reply, kind="fedmd.Up"):
    """Reply with theta = z_k, or its softmax."""


@final
class ConsensusRequest(Predictions, protocol.Request, kind="fedmd.Answer"):
    """Request of the second exchange to one client, with theta = ẑ."""


@final
class ConsensusReply(protocol.Reply, kind="fedmd.Learnt"):
    """Reply of the second exchange, after digestion and training."""
