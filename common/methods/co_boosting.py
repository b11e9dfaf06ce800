"""Co-Boosting: one-shot learning in which generated images and the ensemble improve each other.

Dai et al., "Enhancing One-Shot Federated Learning Through Data and Ensemble Co-Boosting", ICLR
2024.

Co-Boosting extends DENSE and reuses its client half. The ensemble of n clients is
z̄ = Σ_k w_k z_k / Σ_k w_k, with w_k = 1/n at first. In server epoch e = 0, 1, …:

(a) the generator makes a batch as in DENSE, without augmentation, and minimises

        bn · L_BN / n + oh · mean_i (1 − p_i)^hs CE(z̄_i, y_i) − adv · mean_i T_a² KL(σ(z̄_i/T_a) ‖
        σ(s_i/T_a))

    where p_i is the ensemble's probability of y_i, without gradient: hard samples count more;
(b) from the second epoch on, one pass over the pool without the new batch updates the ensemble:
    w ← clip[0, 1](w − μ · .99^e · sign ∂CE(z̄, y)/∂w), where y are the labels used to generate the
    images; w keeps its value if all entries would become 0;
(c) the batch joins the pool; the student makes one pass over the pool, cropped and flipped, on
    images that are made harder:

        x ← x + ε sign ∇_x Σ_c u_c σ(z̄(x)/4)_c,    u ~ U(−1, 1)^C for each image,
        s ← s − η_s ∇ T² KL(σ(z̄/T) ‖ σ(s/T))

The run's model is the student after the last epoch. The server also scores the weighted ensemble
and the ensemble with w = 1/n. ``rounds``, bytes and memory are as in DENSE. The pool takes 8 MB
with the default settings at 3×32×32, 315 MB with the paper's.

Deviations, with their switches:
- L_BN is off, as in the released code, in which ``bn`` is 0.
- ε is in units of the normalised image. The released code normalises with mean and deviation 0.5;
  this implementation uses the mean and deviation of the data set.
- The released code writes the pool to PNG files, 8 bits a pixel, rounded down
  (``pool-dtype = "uint8"``). Here the pool has float32 pixels.
- In the released code the images of both passes over the pool, (b) and (c), have the augmentation
  of the data set's training images: cropped and flipped for CIFAR-10 and CIFAR-100, unchanged for
  MNIST, Fashion-MNIST, SVHN and Tiny-ImageNet (``pool-augment = "released"``). Here (b) uses
  unchanged images and (c) ``augment``.
- Local training uses [train], with a gradient norm of at most 10 (``train.clip``). The released
  code trains as DENSE's does, for 100 epochs.
"""

from typing import Annotated, Literal, final

from pydantic import Field

from common.methods.dense import OneShot, Reply, Request
from common.settings.section import NonNegative, Positive

CLIENT = "dense"


@final
class Options(OneShot):
    leaks = "clients' own models, whole"
    auto = {"train.clip": 10.0}
    released_augment = "none"

    generated: Annotated[int, Field(ge=2)] = 32
    bn: NonNegative = 0.0
    adversarial: Literal["disagreement", "all"] = "all"
    adv_temperature: Positive = 3.0
    view: Literal["augmented", "plain"] = "plain"
    batch_size: Annotated[int, Field(ge=2)] = 128
    temperature: Positive = 4.0
    student_lr: Positive = 0.01
    student_decay: NonNegative = 0.0001
    student_cosine: bool = True
    clip: NonNegative = 10.0
    hs: NonNegative = 1.0
    """Exponent of a sample's hardness 1 − p; 0: all samples count equally."""
    mu: NonNegative = 0.01
    """μ, initial step size of the ensemble weights for each batch; 0: the weights stay equal."""
    epsilon: NonNegative = 8 / 255
    """ε, size of the perturbation that makes the student's images harder; 0: none."""

    def weights_augment(self, data: str) -> str:
        """Return the augmentation of the images in (b); ``data``: the data set's name."""
        return "none" if self.pool_augment == "augment" else self.student_augment(data)
