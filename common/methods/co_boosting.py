"""Co-Boosting: one-shot learning in which generated images and the ensemble improve each other.

Dai et al., "Enhancing One-Shot Federated Learning Through Data and Ensemble Co-Boosting", ICLR
2024.

As DENSE, whose client half it has, with an ensemble z̄ = Σ_k w_k z_k / Σ_k w_k of n clients, w_k =
1/n at first. In server epoch e = 0, 1, …:

(a) a batch is generated as by DENSE, but of views that are not changed, along

        bn · L_BN / n + oh · mean_i (1 − p_i)^hs CE(z̄_i, y_i) − adv · mean_i T_a² KL(σ(z̄_i/T_a) ‖
        σ(s_i/T_a))

    with p_i the ensemble's probability of y_i, taken as a constant: hard samples count more;
(b) from the second epoch on, one pass over the pool, without the new batch, improves the ensemble:
    w ← clip[0, 1](w − μ · .99^e · sign ∂CE(z̄, y)/∂w), y being the labels that the images were
    generated for; where all w would be 0 they stay;
(c) the batch joins the pool; one pass over it, cropped and flipped, on harder images:

        x ← x + ε sign ∇_x Σ_c u_c σ(z̄(x)/4)_c,    u ~ U(−1, 1)^C for each image,
        s ← s − η_s ∇ T² KL(σ(z̄/T) ‖ σ(s/T))

The run's model is the student after the last epoch; beside it the server scores the weighted
ensemble and the plain one, w = 1/n. ``rounds``, bytes and memory are as in DENSE (the pool: 315 MB
for the defaults at 3×32×32).

Deviations, with their switches:
- L_BN is off, as in the released code, in which ``bn`` is 0.
- ε is in units of the normalised image. The released code normalises by mean and deviation 0.5, we
  by those of the data set.
- Local training is the run's [train], but for the gradient's norm, at most 10 (``train.clip``). The
  released code's is that of DENSE's with 100 epochs.
"""

from typing import Annotated, Literal, final

from pydantic import Field

from common.methods.dense import Down, OneShot, Up
from common.section import NonNegative, Positive

CLIENT = "dense"


@final
class Options(OneShot):
    leaks = "clients' own models, whole"
    auto = {"train.clip": 10.0}

    generated: Annotated[int, Field(ge=2)] = 128
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
    """Exponent of how hard a sample is; 0: all count alike."""
    mu: NonNegative = 0.01
    """μ, how far a batch moves the clients' weights in the first epoch; 0: they stay equal."""
    epsilon: NonNegative = 8 / 255
    """ε, how far the student's images are moved towards the ensemble's doubts; 0: not."""
