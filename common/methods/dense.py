"""DENSE: one-shot distillation of the clients' models on generated images.

Zhang et al., "DENSE: Data-Free One-Shot Federated Learning", NeurIPS 2022.

Client k trains a model w_k of its own architecture on its own samples and sends it with its running
statistics. The server sends no model, averages nothing and uses no public data. The student s of
the server may have any architecture and starts from random weights. It learns from the mean of the
clients' logits, z̄(x) = 1/n Σ_k z_k(x). For ``epochs`` server epochs:

(a) a generator G with new weights, latents z ~ N(0, I) [B, ``latent``] and labels y ~ U{1, …, C}:
    ``generator-steps`` steps of Adam (β = .5, .999) on G and z minimise

        bn · L_BN + oh · CE(z̄, y) − adv · mean_i 1(argmax s_i ≠ argmax z̄_i) · KL(σ(z̄_i) ‖ σ(s_i))
        L_BN = Σ_k Σ_l ‖σ²_kl − σ²(a_kl)‖₂ + ‖μ_kl − μ(a_kl)‖₂

    on one random view of G(z), cropped and flipped; a_kl are the inputs of BatchNorm layer l of
    client k, (μ_kl, σ²_kl) its running statistics; no gradient is stopped;
(b) the batch of the step with the smallest loss joins a pool of images, from which none is removed;
(c) one pass over the pool in a random order, cropped and flipped: s ← s − η_s ∇ T² KL(σ(z̄/T) ‖
    σ(s/T)), SGD with momentum.

The clients' networks are always in evaluation mode; s is in evaluation mode in (a). The run's model
is the student after the last epoch. The server also scores the ensemble z̄.

The method has one round (``rounds = 1``). In every further round the clients continue to train
their own models, and the server starts again with a new student, generator and pool. Round t is
thus the one-shot method with clients that have trained t times as long. The ensemble consists of
the clients of the round.

Bytes: a client sends 4 bytes for each number of its own model, once. A round of FedAvg with that
model costs twice as much, because it also sends the model down. Memory of the server: the networks
of all clients of the round, and the pool of 4 · ``epochs`` · ``generated`` · C·H·W bytes on the
device (8 MB with the default settings at 3×32×32, 629 MB with the paper's).

Deviations, with their switches:
- In the released code L_BN is always 0: its hooks search an ensemble that stores the clients in a
  plain list, and match no layer. Here L_BN is computed; ``bn = 0`` reproduces the release.
- The released code keeps the student with the best test accuracy; here the last student is kept.
- Generated images are normalised like real ones; the released code does not normalise them.
- The released code writes the pool to PNG files, 8 bits a pixel, rounded down
  (``pool-dtype = "uint8"``). Here the pool has float32 pixels.
- In the released code the student's images are cropped and flipped for data sets with ``cifar`` in
  their names, and only flipped for others; the generator's view is cropped and flipped for all.
  ``pool-augment = "released"`` follows this rule. Here ``augment`` is used for both.
- Local training uses [train]. The released code uses lr 0.01, momentum 0.9 and batches of 128, with
  100 epochs as its parser's default and 400 in its published command.
- ``student-lr`` is the value of the published command; the parser's defaults are 0.01 and
  ``temperature = 1``.
- The paper does not describe rounds after the first.
"""

from typing import Annotated, ClassVar, Literal, final

from pydantic import Field

from common.data.kinds import IMAGE, describe
from common.exchange.protocol import ModelReply as Reply
from common.exchange.protocol import Request as Request
from common.settings.config import NO_TOKENS, MethodOptions, OwnModels, not_allowed
from common.settings.marks import Mark
from common.settings.section import AtLeastOne, Momentum, NonNegative, Positive
from common.training.task import Task


class OneShot(MethodOptions):
    """Options that DENSE and Co-Boosting share, with the defaults of DENSE."""

    classes_only = "its server generates samples of a class"

    no_texts = NO_TOKENS

    facts = OwnModels.facts.but(
        asynchronous="together",
        up="θ_k",
        sends="a network",
        leaves="the client's own model, weights and BatchNorm statistics, whole; nothing is sent "
        "to it but the student when it is scored",
        infers="the same as with `fedavg`, of the own model, which was trained on no other "
        "client's data and is never averaged. The server's generator draws images that excite the"
        " model as the data do, under `dense.bn` with their statistics",
        whole="the student, and the ensemble",
        part="whole",
        rounds="one",
    )

    epochs: Annotated[AtLeastOne, Mark.SERVER_EPOCHS] = 20
    """Server epochs; 200 in the papers. Each adds a batch to the pool and trains on it once."""
    generated: Annotated[int, Field(ge=2)] = 32
    """B, images in a generated batch; 256 in DENSE, 128 in Co-Boosting."""
    generator_steps: AtLeastOne = 10
    """Steps of the generator for each batch; 30 in the papers."""
    generator_lr: Positive = 0.001
    """Learning rate of the generator's Adam."""
    latent: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Length of z."""
    width: Annotated[int, Field(ge=2, le=4096)] = 32
    """Channels of the generator; 128 in the released codes."""
    bn: NonNegative = 1.0
    """Weight of L_BN; 0: no such term, as in both released codes."""
    oh: NonNegative = 1.0
    """Weight of the cross-entropy with the labels."""
    adv: NonNegative = 1.0
    """Weight of the divergence between student and ensemble, which the generator maximises."""
    adversarial: Literal["disagreement", "all"] = "disagreement"
    """Samples in this divergence: those with different predicted classes, or all."""
    adv_temperature: Positive = 1.0
    """T of this divergence, which is multiplied by T²."""
    view: Literal["augmented", "plain"] = "augmented"
    """Images in the generator's losses: G(z) changed by ``augment``, or unchanged."""
    augment: Literal["none", "flip", "crop-flip"] = "crop-flip"
    """Augmentation of generated images, with the values of ``data.augment``."""
    pool_augment: Literal["augment", "released"] = "augment"
    """Augmentation of images from the pool: the value of ``augment``, for the student only, or the
    released code's for the data set, in every pass over the pool."""
    pool_dtype: Literal["float32", "uint8"] = "float32"
    """Number type of the pool's pixels; ``uint8`` rounds down to 256 values, as the released codes'
    image files do, and takes a quarter of the memory."""
    batch_size: Annotated[int, Field(ge=2)] = 256
    """Images in a step of the student."""
    temperature: Positive = 20.0
    """T of the student's distillation."""
    student_lr: Positive = 0.005
    """η_s, the learning rate of the student's SGD."""
    student_momentum: Momentum = 0.9
    """Momentum of the student's SGD."""
    student_decay: NonNegative = 0.0
    """Weight decay of the student's SGD."""
    student_cosine: bool = False
    """Whether the student's learning rate follows half a cosine over the epochs."""
    clip: NonNegative = 0.0
    """Largest gradient norm of the generator and of the student; 0: no limit."""

    released_augment: ClassVar[str] = "flip"
    """Augmentation of the released code's pool for data sets other than CIFAR."""

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        table = task.config.run.method
        for key, value, allowed in (
            ("augment", self.augment, "none"),
            ("pool-augment", self.pool_augment, "augment"),
            ("pool-dtype", self.pool_dtype, "float32"),
        ):
            if task.kind is not IMAGE and value != allowed:
                why = describe(task.shape)
                raise not_allowed(f"{table}.{key}", value, f"{why}, only with images", allowed)

    def student_augment(self, data: str) -> str:
        """Return the augmentation of the student's images; ``data``: the data set's name."""
        if self.pool_augment == "augment":
            return self.augment
        return "crop-flip" if "cifar" in data else self.released_augment


@final
class Options(OneShot):
    """Options of DENSE, all of them shared with Co-Boosting."""

    leaks = "clients' own models, whole"
