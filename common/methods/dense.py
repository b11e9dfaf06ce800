"""DENSE: one-shot learning from the clients' models, with images that a generator makes up.

Zhang et al., "DENSE: Data-Free One-Shot Federated Learning", NeurIPS 2022.

Client k trains a model w_k of its own architecture on its own samples and sends it, running
statistics included. Nothing is sent to it, nothing is averaged, there are no public data. The
server's student s, of any architecture, starts from its first draw and learns from the mean of
the clients' logits, z̄(x) = 1/n Σ_k z_k(x). For ``epochs`` server epochs:

(a) a generator G with new weights, latents z ~ N(0, I) [B, ``latent``] and labels y ~ U{1, …, C}:
    ``generator-steps`` steps of Adam (β = .5, .999) on G and z, along

        bn · L_BN + oh · CE(z̄, y) − adv · mean_i 1(argmax s_i ≠ argmax z̄_i) · KL(σ(z̄_i) ‖ σ(s_i))
        L_BN = Σ_k Σ_l ‖σ²_kl − σ²(a_kl)‖₂ + ‖μ_kl − μ(a_kl)‖₂

    on one random view of G(z), cropped and flipped; a_kl are the inputs of BatchNorm layer l of
    client k, (μ_kl, σ²_kl) its running statistics; no gradient is stopped;
(b) the batch of the step with the least loss joins a pool of images, which only grows;
(c) one pass over the pool in a random order, cropped and flipped: s ← s − η_s ∇ T² KL(σ(z̄/T) ‖
    σ(s/T)), SGD with momentum.

The clients' networks are in evaluation mode throughout, s in (a). The run's model is the student
after the last epoch; the ensemble z̄ is scored beside it, by the server alone.

``rounds = 1`` is the method. In every further round the clients go on from their own models and the
server does all of it anew, with a new student, generator and pool: round t is the one-shot method
on clients that have trained t times as long. The ensemble are the clients of the round.

Bytes: a client sends 4 bytes for each number of its own model, once, half of a round of FedAvg with
that model, which also sends it down; FedAvg with R rounds costs 2R times as much. Memory of the
server: all clients' networks of the round, and the pool, 4 · ``epochs`` · ``generated`` · C·H·W
bytes on the device (629 MB for the defaults at 3×32×32).

Deviations, with their switches:
- In the released code L_BN is always 0: its hooks look for layers in an ensemble that keeps the
  clients in a plain list. Ours is real; ``bn = 0`` is the release.
- The released code keeps the student that tests best. Ours is the last.
- Generated images are normalised as real ones are; the released code normalises nothing.
- Local training is the run's [train]. The released code's has lr 0.01, momentum 0.9, batches of 128
  and 100 epochs by its parser, 400 by its command.
- ``student-lr`` is that of the released command; its parser has 0.01 and ``temperature = 1``.
- Nothing is said of rounds after the first.
"""

from typing import Annotated, Literal, final

from pydantic import Field

from common.config import MethodOptions
from common.protocol import Down as Down
from common.protocol import Trained as Up
from common.section import AtLeastOne, Momentum, NonNegative, Positive


class OneShot(MethodOptions):
    """What DENSE and Co-Boosting both have; the defaults are DENSE's."""

    epochs: AtLeastOne = 200
    """Epochs of the server: each adds a batch to the pool and trains on the whole pool once."""
    generated: Annotated[int, Field(ge=2)] = 256
    """B, images in a generated batch."""
    generator_steps: AtLeastOne = 30
    """Steps of the generator for each batch."""
    generator_lr: Positive = 0.001
    """Learning rate of the generator's Adam."""
    latent: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Length of z."""
    width: Annotated[int, Field(ge=2, le=4096)] = 128
    """Channels of the generator; less for a CPU."""
    bn: NonNegative = 1.0
    """Weight of L_BN; 0: none, as in the released codes."""
    oh: NonNegative = 1.0
    """Weight of the cross-entropy with the labels."""
    adv: NonNegative = 1.0
    """Weight of the divergence of student and ensemble, which the generator maximises."""
    adversarial: Literal["disagreement", "all"] = "disagreement"
    """Its samples: those of which the two name different classes, or all."""
    adv_temperature: Positive = 1.0
    """Its T; it is multiplied by T²."""
    view: Literal["augmented", "plain"] = "augmented"
    """What the generator's losses see: G(z) as ``augment`` changes it, or as it is."""
    augment: Literal["none", "flip", "crop-flip"] = "crop-flip"
    """What is done to generated images, as ``data.augment`` does to real ones."""
    batch_size: Annotated[int, Field(ge=2)] = 256
    """Images in a step of the student."""
    temperature: Positive = 20.0
    """T of the student's distillation."""
    student_lr: Positive = 0.005
    """η_s, of the student's SGD."""
    student_momentum: Momentum = 0.9
    """Momentum of the student's SGD."""
    student_decay: NonNegative = 0.0
    """Weight decay of the student's SGD."""
    student_cosine: bool = False
    """Its learning rate falls over the epochs as half a cosine."""
    clip: NonNegative = 0.0
    """Largest gradient norm of the generator and of the student; 0: none."""


@final
class Options(OneShot):
    """DENSE's are all shared."""

    leaks = "clients' own models, whole"
