"""FedMD: clients of any architectures agree on what they say about public images.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS workshop on
federated learning for data privacy and confidentiality, 2019. The released code (diogenes0319/
FedMD_clean) settles what the paper leaves open.

Client k keeps a model θ_k of its own architecture, with logits f(θ_k; x) [C], for good. Before its
first round (transfer learning, "Train each party"):

    ``public-epochs`` epochs of CE on the labelled public set, then ``first-epochs`` on its own

Round t, with A_t ``public.subset`` public images that all draw alike, in two exchanges:

    up:      z_k = f(θ_k; A_t)
    server:  ẑ = 1/|S_t| Σ_{k∈S_t} z_k
    down:    ẑ
    digest:  ``public.epochs`` epochs of |f(θ_k; x) − ẑ(x)|, mean over samples and classes
    revisit: E epochs of CE(f(θ_k; x), y) on the client's own samples (``train.epochs``)

The same clients take part in both exchanges, and go on from the weights that spoke. Who did not get
ẑ stays as it is until the next round.

There is no global model. What is scored is θ_k, as with ``local``; the paper's number is the mean
of the clients' accuracies on the whole test set (``whole-test``). Without digestion
(``public.learn = false``) and what comes before round 1, θ_k is that of ``local`` to the bit.

Released: Adam at 0.001 throughout, also [train]'s; A_t of 5000, digested once in batches of 256;
25 first epochs in batches of 32, then 2 to 10 a round in batches of 5; 20 rounds.

Deviations, with their switches:
- ``public-epochs`` is 0. The paper has up to 20 where the public set has labels of use (MNIST for
  EMNIST letters, CIFAR-10 for CIFAR-100) in a head of both sets' classes. Here a head has the
  task's classes, so the public set must too; otherwise a number above 0 is refused. FedORION's
  paper leaves it out for the same reason.
- Training before round 1 takes [train]'s optimiser and batch size, and does not stop early: the
  released code watches the test set for that.
- ``align = "mse"`` is the squared difference. ``"kl"``: probabilities travel, ẑ is their mean, and
  the client descends KL(ẑ ‖ softmax f).
- Logits are cut off at ± 65504.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from common import protocol
from common.config import Value
from common.losses.distillation import kl_from
from common.methods.local import OwnModels
from common.predictions import Predictions
from common.public_set import OnPublicSet
from common.task import Task


class Speaking(OnPublicSet, OwnModels, ABC):
    """Options of methods whose clients send predictions for A_t and learn the server's answer."""

    public_epochs: Annotated[int, Field(ge=0)] = 0
    """Epochs on the labelled public set before a client's first round, if its classes are the
    task's; with [train]'s optimiser and batch size."""
    first_epochs: Annotated[int, Field(ge=0)] = 0
    """Epochs on the client's own samples before its first round, after those."""

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        if self.public_epochs:
            self.check_labels(task.config, f"public-epochs = {self.public_epochs}")

    @property
    @abstractmethod
    def probabilities(self) -> bool:
        """Whether distributions travel, or logits."""

    @abstractmethod
    def speak(self, z: Tensor) -> Tensor:
        """What a client says whose logits are z [n, C]."""

    @abstractmethod
    def distance(self, z: Tensor, target: Tensor) -> Tensor:
        """How far logits z are from what the server says, both [n, C]: a scalar to descend."""

    def private_epochs(self, t: int, epochs: int) -> int:
        """Epochs of round t on the own samples, where ``train.epochs`` is ``epochs``."""
        return epochs


@final
class Options(Speaking):
    leaks = "logits of public images"
    auto: ClassVar[Mapping[str, Value]] = {
        "public.optimizer": "adam",
        "public.lr": 0.001,
        "public.subset": 5000,
        "public.epochs": 1,
        "public.batch-size": 256,
    }

    first_epochs: Annotated[int, Field(ge=0)] = 25
    """Epochs on the client's own samples before its first round."""
    align: Literal["l1", "mse", "kl"] = "l1"
    """What is digested: absolute or squared differences of logits, or KL of probabilities."""

    @property
    def probabilities(self) -> bool:
        return self.align == "kl"

    def speak(self, z: Tensor) -> Tensor:
        return torch.softmax(z, dim=1) if self.probabilities else z

    def distance(self, z: Tensor, target: Tensor) -> Tensor:
        if self.align == "kl":
            return kl_from(target, z)
        return (F.l1_loss if self.align == "l1" else F.mse_loss)(z, target)


@final
class Down(protocol.Down):
    """Speak about A_t: everything else is agreed."""


@final
class Up(Predictions, protocol.Up):
    """theta is z_k, or its distributions."""


@final
class Answer(Predictions, protocol.Down):
    """The second exchange, to one client: theta is ẑ."""


@final
class Learnt(protocol.Up):
    """The client's answer: it has digested and trained."""
