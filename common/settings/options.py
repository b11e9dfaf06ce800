"""The knobs of parts that several methods share: averaging, cached uploads, noise, generators.

A method's contract names the tables that it reads (``uses``) and what ``auto`` stands for with it.
"""

import math
from typing import Annotated, Literal, final

from pydantic import Field

from common.settings.section import (
    AtLeastOne,
    Auto,
    Fraction,
    Momentum,
    NonNegative,
    Positive,
    Section,
)

MILESTONES = r"^([1-9][0-9]*(, *[1-9][0-9]*)*)?$"


class Descent(Section):
    """An optimiser, and its learning rate over the rounds: of the clients, or of the server."""

    optimizer: str = "sgd"
    """sgd, adam, adamw, or any other class of torch.optim by its name."""
    optimizer_options: str = ""
    """Further arguments of that class, as in TOML: ``alpha = 0.9, betas = [0.9, 0.99]``."""
    lr: Positive = 0.01
    """Learning rate of the first round."""
    momentum: Momentum = 0.9
    """Momentum of SGD; for other optimisers see ``optimizer-options``."""
    weight_decay: NonNegative = 0.0
    """The optimiser's: an L2 penalty on the weights, under adamw decoupled from the gradient."""
    lr_decay: Fraction = 1.0
    """The learning rate is multiplied by this after every round."""
    milestones: Annotated[str, Field(pattern=MILESTONES)] = ""
    """Comma-separated rounds after each of which it is multiplied by ``milestone-factor``."""
    milestone_factor: Fraction = 0.1
    """What a milestone leaves of the learning rate."""
    cosine: bool = False
    """It also falls over the run as half a cosine; ``rounds`` is then part of what is computed."""

    def lr_at(self, t: int, rounds: int) -> float:
        """The learning rate of round t ≥ 1 of ``rounds``.

        lr · lr-decay^(t−1) · milestone-factor^(milestones < t) · ½ (1 + cos π (t−1)/rounds)
        """
        passed = sum(int(round_) < t for round_ in self.milestones.split(",") if round_)
        lr = self.lr * self.lr_decay ** (t - 1) * self.milestone_factor**passed
        return lr * 0.5 * (1 + math.cos(math.pi * (t - 1) / rounds)) if self.cosine else lr


@final
class Average(Section):
    """The mean of the clients' copies of the global model."""

    weights: Annotated[Literal["auto", "samples", "uniform"], Auto("samples")] = "auto"
    """A client's weight in the mean: its training samples, or the same for all."""
    bn_buffers: bool = True
    """Average BatchNorm's running statistics; otherwise the server keeps its own."""
    across: Annotated[
        Literal["auto", "none", "layerwise", "same", "depth", "width"], Auto("none")
    ] = "auto"
    """Clients train the global architecture (``none``), or each its own: every layer averaged over
    all clients that have it (``layerwise``), or only within equal architectures (``same``); or
    layer-wise, but each depth keeps some layers (``depth``: InclusiveFL); or every number over all
    whose width of one architecture has it (``width``)."""
    own: Literal["head,last", "head", "last", "none"] = "head,last"
    """``depth``: what every architecture averages among its own clients alone: its head, the last
    block of its last stage."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.2
    """``depth``: momentum distillation, β: so much of the step of an architecture's last blocks is
    the step that the next larger one takes from there on."""
    stages: Literal["all", "last"] = "all"
    """``depth``: momentum distillation in every stage, or in the last one alone."""
    robust: Literal["none", "median", "trimmed", "clip"] = "none"
    """Instead of the mean: coordinate-wise median or trimmed mean of the clients, who then all
    count alike; or the mean after each client's step from the previous model is shortened to
    ``clip-norm``."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Share of the clients left out at each end under ``trimmed``, at least one of three."""
    clip_norm: Positive = 10.0
    """Longest step of a client under ``clip``: Euclidean, over everything that is averaged."""


@final
class Privacy(Section):
    """Client-level differential privacy of methods whose uploads are only averaged."""

    mode: Literal["off", "central", "local"] = "off"
    """Noise is added by the server, which is trusted with single updates (``central``), or by each
    client before it sends (``local``)."""
    clip: Positive = 1.0
    """C: the longest update of a client, Euclidean, over everything that is averaged."""
    noise_multiplier: Annotated[float, Field(ge=0.01, le=1000)] = 1.0
    """z: the noise's standard deviation over C, in the sum (``central``) or in each update."""
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """δ for which ε is told; 0: clients^−1.1."""
    sampling: Literal["public", "secret"] = "public"
    """``public``: clients are selected as always, which everybody can foretell, and ε counts all as
    selected in each round. ``secret``: each by itself with probability per-round / clients, of the
    operating system's entropy, and ε is the smaller for it (``central``)."""

    @property
    def on(self) -> bool:
        return self.mode != "off"


@final
class Oca(Section):
    """Overall clients aggregated: the server caches every client's latest upload (FedKF, IV-A)."""

    aggregate: Annotated[Literal["auto", "on", "off"], Auto("off")] = "auto"
    """Also combine the cached uploads of all clients; that model is then the run's."""
    init: Literal["uploaded", "w0"] = "uploaded"
    """Clients that never uploaded: left out, or standing in it with the first model."""
    in_memory: Annotated[int, Field(ge=0)] = 64
    """Newest uploads kept in memory and in the checkpoint; older ones lie in files beside it."""


@final
class NoiseTraining(Descent):
    """The server's distillation on noise: all networks frozen but one, the student."""

    lr: Positive = 0.001
    """Learning rate of the student in the first round."""

    kind: Literal["gaussian", "uniform", "dead_leaves", "stylegan"] = "gaussian"
    """What the inputs are."""
    temperature: Positive = 1.0
    """Temperature of the softmax on both sides."""
    teacher_bn: Literal["batch", "running"] = "batch"
    """BatchNorm of the teachers: the noise batch's statistics, or their data's running ones."""
    protect_running_stats: bool = True
    """The student's running statistics are not touched by noise."""
    max_norm: Literal["sum", "softmax", "none"] = "sum"
    """What makes the element-wise maximum of the teachers' distributions one, where it is taken."""
    epochs: AtLeastOne = 1
    """Server epochs in a round; 5 in FedORION's released code."""
    batches: AtLeastOne = 50
    """Noise batches in a server epoch; 200 in FedORION's experiments."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Noise images in a batch."""


@final
class GeneratorTraining(Descent):
    """A generator of images, and the losses of data-free distillation (FedKF, eq. 2-5)."""

    optimizer: str = "adam"
    """Optimiser of the generator: adam as in the papers, or a class of torch.optim by its name."""
    lr: Annotated[float, Field(ge=0, allow_inf_nan=False), Auto(0.001)] = 0.0
    """Learning rate of the generator in the first round; 0: the method's own."""

    latent: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Length of z."""
    width: Annotated[int, Field(ge=2, le=4096)] = 32
    """Channels of the generator; 128 in the papers."""
    lambda_oh: NonNegative = 0.1
    """λ₁, the weight of the one-hot loss."""
    lambda_a: NonNegative = 0.1
    """λ₂, the weight of the activation loss."""
    adversarial: Annotated[Literal["auto", "on", "off", "cifar"], Auto("off")] = "auto"
    """Also look for images on which teacher and student disagree: always, never, on CIFAR only."""
    ie_norm: bool = True
    """Information entropy as 1 − H/log C, not −H."""
    act_reduction: Literal["mean", "sum"] = "mean"
    """L1 norm of the activations: mean over entries, or their sum."""
    update_order: Literal["student", "generator"] = "student"
    """Which of the two takes its step first on a batch."""


@final
class Confidence(Section):
    """What weighs a client's predictions on the public set (DL-SH, Algorithm 1)."""

    kind: Literal["classifier", "odin", "uniform"] = "classifier"
    """A private confidence net C_i, the ODIN score of M_i, or nothing."""
    temperature: Positive = 0.1
    """T of equation 4."""
    space: Literal["prob", "logit"] = "prob"
    """Confidences enter equation 4 as they are, or as their logits."""
    init: Literal["local", "scratch"] = "local"
    """C_i starts from M_i, or anew."""
    epochs: AtLeastOne = 3
    """E_embed, epochs of C_i."""
    balance: Literal["plain", "weights", "sampling"] = "plain"
    """More public than private images: left so, met by the loss's weights, or by repetition."""
    odin_temperature: Positive = 1000.0
    """ODIN's T."""
    odin_epsilon: NonNegative = 0.0014
    """ODIN's step, in pixels of [0, 1]."""


@final
class Ensemble(Section):
    """What the server makes of the clients' predictions, and how long it learns it."""

    aggregation: Literal["weighted_sum", "literal_product", "uhc-ce", "uhc-mf"] = "weighted_sum"
    """Equation 1, Algorithm 2 as printed, or UHC by cross-entropy or matrix factorisation, which
    is for clients with heads of their own."""
    epochs: AtLeastOne = 10
    """E_g, epochs of the server's model on the public set."""
    uhc_steps: AtLeastOne = 50
    """Gradient steps, or alternations, of UHC."""
    uhc_lr: Positive = 0.5
    """Step size of uhc-ce."""


@final
class PublicTraining(Descent):
    """Learning what somebody says about the public set: of clients, of the server, or of both."""

    optimizer: Annotated[str, Auto("sgd")] = "auto"
    """auto: the method's own; sgd, adam, adamw, or any other class of torch.optim by its name."""
    lr: Annotated[float, Field(ge=0, allow_inf_nan=False), Auto(0.01)] = 0.0
    """Learning rate of the first round; 0: the method's own."""
    momentum: Momentum = 0.0
    """Momentum of SGD; for other optimisers see ``optimizer-options``."""

    subset: Annotated[int, Field(ge=0), Auto(0)] = 0
    """Public samples of a round, drawn anew by everybody alike; at most all. 0: the method's own,
    of most all."""
    epochs: Annotated[int, Field(ge=0), Auto(5)] = 0
    """Passes over them where they are learnt from; 0: the method's own."""
    batch_size: Annotated[int, Field(ge=0), Auto(128)] = 0
    """Images in a batch; 0: the method's own."""
    anneal: bool = False
    """The learning rate also falls over the steps of a round as half a cosine, to 0."""
    learn: bool = True
    """Whether anything is learnt there; false is the control of what the rest alone gives."""
    protect_running_stats: bool = False
    """Running statistics of BatchNorm are not touched by public images, which are then normalised
    by their batch."""
