"""Settings that several methods share: averaging, cached uploads, noise, generators, public set.

A method's contract lists the tables that it reads (``uses``) and its own values of ``auto``.

A class is a table of settings, its fields are the settings, and the text below a field is the help
of the setting, in the documentation too. Marks in ``Annotated`` say what a setting is
(``common/settings/marks.py``): ``Auto`` has the usual value of ``auto`` or 0, ``Unprotected`` the
only values that ``[privacy]`` allows.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, final

from pydantic import Field

from common.settings.marks import Auto, Form, Mark, OfEach, Place, Unprotected
from common.settings.section import (
    AtLeastOne,
    Fraction,
    Momentum,
    NonNegative,
    Positive,
    Section,
)

MOST_SECURE = 255  #: clients of a secure sum, as many as shares of a byte
KRUM = ("krum", "multi-krum")
"""Values of ``average.robust`` that need a minimum number of replies."""
WHOLE = (*KRUM, "geometric-median", "fltrust")
"""Values of ``average.robust`` that compare whole models, so they need equal architectures."""

MILESTONES = r"^([1-9][0-9]*(, *[1-9][0-9]*)*)?$"
"""Comma-separated numbers of rounds, or nothing."""


class Descent(Section):
    """Settings of an optimiser and of its learning rate over the rounds."""

    optimizer: Annotated[str, Mark.TEXT] = "sgd"
    """sgd, adam, adamw, or the name of any other class in torch.optim."""
    optimizer_options: Annotated[str, Mark.TEXT, Mark.CHOSEN] = ""
    """Further arguments of the optimiser, as in TOML: ``alpha = 0.9, betas = [0.9, 0.99]``."""
    lr: Annotated[Positive, Mark.CHOSEN] = 0.01
    """Learning rate of the first round."""
    momentum: Momentum = 0.9
    """Momentum of SGD; for other optimisers see ``optimizer-options``."""
    weight_decay: Annotated[NonNegative, Mark.CHOSEN] = 0.0
    """L2 penalty on the weights; adamw applies it separately from the gradient."""
    lr_decay: Annotated[Fraction, Mark.CHOSEN] = 1.0
    """Factor of the learning rate after every round."""
    milestones: Annotated[
        str, Field(pattern=MILESTONES), Form("rounds, such as 100,150"), Mark.TEXT, Mark.CHOSEN
    ] = ""
    """Comma-separated rounds; after each, ``milestone-factor`` multiplies the learning rate."""
    milestone_factor: Annotated[Fraction, Mark.CHOSEN] = 0.1
    """Factor of the learning rate at a milestone."""
    cosine: Annotated[bool, Mark.CHOSEN] = False
    """Decrease the learning rate over the run as half a cosine; results depend on ``rounds``."""

    def lr_at(self, t: int, rounds: int) -> float:
        """Return the learning rate of round t ≥ 1 of ``rounds``.

        lr · lr-decay^(t−1) · milestone-factor^(milestones < t) · ½ (1 + cos π (t−1)/rounds)
        """
        passed = sum(int(round_) < t for round_ in self.milestones.split(",") if round_)
        lr = self.lr * self.lr_decay ** (t - 1) * self.milestone_factor**passed
        return lr * 0.5 * (1 + math.cos(math.pi * (t - 1) / rounds)) if self.cosine else lr


@final
class Average(Section):
    """Settings of the mean of the clients' copies of the global model."""

    weights: Annotated[
        Literal["auto", "samples", "tokens", "uniform"],
        Auto("samples"),
        Unprotected("all clients must have equal weights", "uniform"),
    ] = "auto"
    """Weight of a client in the mean: its number of training samples, its number of tokens to learn
    (of other objectives its samples), or equal for all."""
    bn_buffers: bool = True
    """Average BatchNorm's running statistics too; otherwise the server keeps its own."""
    across: Annotated[
        Literal["auto", "none", "layerwise", "same", "depth", "width"],
        Auto("none"),
        Unprotected("a size may belong to a single client", "none"),
        OfEach("a sum over one size may be of few clients", "none"),
    ] = "auto"
    """``none``: clients train the global architecture; otherwise each client trains its own.
    ``layerwise``: average a layer over all clients that have it. ``same``: average only among equal
    architectures. ``depth``: layer-wise, but each depth keeps some layers (InclusiveFL). ``width``:
    average a number over all clients whose width of the architecture has it."""
    own: Literal["head,last", "head", "last", "none"] = "head,last"
    """``depth``: layers that are averaged only among clients of one architecture: the head, the
    last block of the last stage."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.2
    """``depth``: β of momentum distillation, the share of the next larger architecture's step in
    the step of an architecture's last blocks."""
    stages: Literal["all", "last"] = "all"
    """``depth``: momentum distillation in every stage, or only in the last."""
    robust: Annotated[
        Literal[
            "none", "median", "trimmed", "clip", "krum", "multi-krum", "geometric-median", "fltrust"
        ],
        Unprotected("the noise is for a mean", "none"),
        OfEach("the server sees no single update", "none"),
    ] = "none"
    """Robust aggregation. ``median``, ``trimmed``: coordinate-wise median or trimmed mean, with
    equal weights. ``clip``: the mean of the clients' steps from the previous model, each shortened
    to ``clip-norm``. ``krum``: the model closest to its neighbours; ``multi-krum``: the mean of
    those closest. ``geometric-median``: the model with the smallest sum of distances. ``fltrust``:
    the mean of the steps along the server's own step on its labelled public set."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """``trimmed``: share of the clients omitted at each end, at least one client of three.
    ``krum``, ``multi-krum``: share of the clients that may send false models."""
    clip_norm: Positive = 10.0
    """``clip``: maximum Euclidean norm of a client's step, over everything that is averaged."""
    server_optimizer: Literal["none", "sgd", "adam", "yogi", "adagrad", "amsgrad"] = "none"
    """Optimizer of the server's step from the model before the round to the mean: FedAvgM is
    ``sgd`` with momentum; FedAdam, FedYogi and FedAdagrad have theirs. ``none``: take the mean."""
    server_lr: NonNegative = 0.0
    """η, learning rate of the server's optimizer; 0: 1 for ``sgd``, 0.01 for the others."""
    server_momentum: Momentum = 0.0
    """``sgd``: β, momentum of the server's steps; 0.9 in FedAvgM."""
    server_beta1: Momentum = 0.9
    """``adam``, ``yogi``, ``amsgrad``: β₁ of the mean of the steps."""
    server_beta2: Momentum = 0.99
    """``adam``, ``yogi``, ``amsgrad``: β₂ of the mean of their squares."""
    server_tau: Positive = 0.001
    """All but ``sgd``: τ, which limits the step of parameters with small changes; a larger value
    makes the step more like that of ``sgd``."""

    def shares(self, sizes: Sequence[int]) -> Sequence[int]:
        """Return p_k of clients with ``sizes`` samples or tokens, not divided by their sum."""
        return [1] * len(sizes) if self.weights == "uniform" else sizes

    @property
    def server_rate(self) -> float:
        """η of the server's optimizer."""
        return self.server_lr or (1.0 if self.server_optimizer == "sgd" else 0.01)


@final
class Privacy(Section):
    """Settings of client-level differential privacy, for methods that only average uploads."""

    mode: Annotated[
        Literal["off", "central", "local"],
        OfEach("the server cannot clip single updates", "off", "local"),
    ] = "off"
    """``central``: a trusted server adds noise to the sum of updates. ``local``: each client adds
    noise to its update before it sends it."""
    clip: Positive = 1.0
    """C, maximum Euclidean norm of a client's update, over everything that is averaged."""
    noise_multiplier: Annotated[float, Field(ge=0.01, le=1000)] = 1.0
    """z, standard deviation of the noise divided by C, in the sum (``central``) or each update."""
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """δ for which ε is computed; 0: 1 / (10 · clients), at most 1e-5. A larger value makes ε look
    small; the run warns of it."""
    sampling: Annotated[
        Literal["public", "secret"],
        Unprotected("the selection is not secret from the server", "public", modes=("local",)),
    ] = "public"
    """``public``: the usual selection, which is predictable, so ε counts every client in every
    round. ``secret`` (``central`` only): select each client independently with probability
    per-round / clients from the operating system's entropy, which gives a smaller ε. The journal
    then has no times."""
    round_seconds: Annotated[NonNegative, Mark.FREE] = 0.0
    """Duration of every round in seconds, for runs that others watch while they go on; 0: a round
    takes as long as its clients. The server waits until it is over. It must exceed ``timeout``."""

    @property
    def hides_times(self) -> bool:
        """Whether no times leave the server, because they depend on the selected clients."""
        return self.on and (self.sampling == "secret" or self.round_seconds > 0)

    @property
    def local_noise(self) -> float:
        """z of the noise that a client adds to its update; 0: it adds none."""
        return self.noise_multiplier if self.mode == "local" else 0.0

    @property
    def on(self) -> bool:
        """Whether differential privacy is on."""
        return self.mode != "off"


@final
class Secure(Section):
    """Settings of secure aggregation, for methods that only average uploads: the server sees the
    sum of the clients' updates, and no single one."""

    mode: Literal["off", "on"] = "off"
    """``on``: clients add masks to their updates, which cancel in the sum."""
    threshold: Literal["two-thirds", "majority"] = "two-thirds"
    """Clients of a round that must send an update and help to remove the masks. ``two-thirds``:
    more than 2/3, against a server that tells clients different things. ``majority``: more than
    1/2, for a server that follows the protocol."""
    fewest: Annotated[int, Field(ge=2, le=255)] = 3
    """Fewest clients of a sum; a client refuses to take part in a sum of fewer."""
    clip: Positive = 1.0
    """c: an entry of a weighted update is cut off at ±c, and rounded to multiples of c / (2²³ − 1).
    It is not the norm of [privacy]. The journal has the share of entries that were cut off."""

    @property
    def on(self) -> bool:
        """Whether secure aggregation is on."""
        return self.mode == "on"

    def least(self, n: int) -> int:
        """Return ϑ of a round with n clients: the updates, answers and shares that it needs.

        A server that tells n honest clients different survivors learns sums of 2 ϑ − n clients at
        least, which ``two-thirds`` keeps at or above ``fewest``.
        """
        if self.threshold == "majority":
            return n // 2 + 1
        return max(2 * n // 3 + 1, -(-(n + self.fewest) // 2))

    def check(self, selected: int, clients: int, min_replies: float) -> None:
        """Raise ``ValueError``, one line, for numbers of clients with which no round can succeed.

        ``selected``: clients of a round; ``clients``: of the roster; ``min_replies``: a share.
        """
        if clients > MOST_SECURE:
            line = f'a federation of {clients} clients is too large for secure.mode = "on"'
            raise ValueError(f"{line}; at most {MOST_SECURE}")
        if selected < self.fewest:
            line = f"secure.fewest = {self.fewest} is more than the {selected} clients of a round"
            raise ValueError(line)
        if math.ceil(min_replies * selected - 1e-9) < (least := self.least(selected)):
            raise ValueError(
                f"min-replies = {min_replies:g} is below the {least} of {selected} clients that "
                f'secure.threshold = "{self.threshold}" needs'
            )


@final
class Oca(Section):
    """Settings of the server's cache of every client's latest upload ("overall clients aggregated",
    FedKF, section IV-A)."""

    aggregate: Annotated[
        Literal["auto", "on", "off"],
        Auto("off"),
        Unprotected("cached uploads would be used again", "off"),
        OfEach("the server has no single upload to cache", "off"),
    ] = "auto"
    """Also average the cached uploads of all clients; this average is then the run's model."""
    init: Literal["uploaded", "w0"] = "uploaded"
    """Clients without an upload: omitted, or represented by the first model (``w0``)."""
    in_memory: Annotated[int, Field(ge=0)] = 64
    """Newest uploads kept in memory and in the checkpoint; older ones are in files beside it."""


@final
class Adapters(Section):
    """Settings of low-rank adapters, for networks such as ``gpt-2-lora4``, whose rank is 4."""

    base: Annotated[str, Place("weights")] = ""
    """Hugging Face folder (config.json, safetensors) of the network ``base``, for texts, as in the
    fleet ``base-lora4``; needs the extra ``text``."""
    scale: Positive = 2.0
    """s, factor of an adapter's update s B A; the same for all ranks."""
    alpha: NonNegative = 0.0
    """α, above 0: the factor of an adapter of rank r is α / r instead; 0: ``scale``."""
    targets: Annotated[str, Mark.TEXT] = ""
    """Comma-separated layers with adapters, by the ends of their names, such as ``qkv,out``; empty:
    every linear layer and convolution but the head, of a folder's network those of peft."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of an adapter's inputs that are 0 in training."""


@final
class FineTuning(Section):
    """Settings of local fine-tuning before clients score, which changes no model of the run."""

    epochs: Annotated[
        int,
        Field(ge=0, le=100_000),
        Mark.CLIENT_EPOCHS,
        Unprotected("clients' scores have no noise", 0),
    ] = 0
    """Epochs in which a client trains a copy of the model that it scores on its own training
    samples, to score the copy too (``finetuned``); the copy is then discarded. 0: none."""
    layers: Literal["all", "head"] = "all"
    """Layers that are trained; ``head``: the last one, on features of a network that does not
    change."""


@final
class NoiseTraining(Descent):
    """Settings of the server's distillation on noise into one student network."""

    lr: Positive = 0.001
    """Learning rate of the student in the first round."""

    kind: Literal["gaussian", "uniform", "dead_leaves", "stylegan"] = "gaussian"
    """Distribution of the input images."""
    temperature: Positive = 1.0
    """Temperature of the softmax of teachers and student."""
    teacher_bn: Literal["batch", "running"] = "batch"
    """BatchNorm statistics of the teachers: those of the noise batch, or their running ones."""
    protect_running_stats: bool = True
    """Keep noise from changing the student's running statistics."""
    max_norm: Literal["sum", "softmax", "none"] = "sum"
    """Normalisation of the element-wise maximum of the teachers' distributions, if it is used."""
    epochs: Annotated[AtLeastOne, Mark.SERVER_EPOCHS] = 1
    """Server epochs in a round; 5 in FedORION's released code."""
    batches: AtLeastOne = 50
    """Noise batches in a server epoch; 200 in FedORION's released code."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Noise images in a batch."""


@final
class GeneratorTraining(Descent):
    """Settings of an image generator and of data-free distillation losses (FedKF, eq. 2-5)."""

    optimizer: Annotated[str, Mark.TEXT] = "adam"
    """Optimiser of the generator: adam as in the papers, or the name of a class in torch.optim."""
    lr: Annotated[float, Field(ge=0, allow_inf_nan=False), Auto(0.001)] = 0.0
    """Learning rate of the generator in the first round; 0: the method's default."""

    latent: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Length of z."""
    width: Annotated[int, Field(ge=2, le=4096)] = 32
    """Channels of the generator; 128 in the papers."""
    lambda_oh: NonNegative = 0.1
    """λ₁, weight of the one-hot loss."""
    lambda_a: NonNegative = 0.1
    """λ₂, weight of the activation loss."""
    adversarial: Annotated[Literal["auto", "on", "off", "cifar"], Auto("off")] = "auto"
    """Loss that favours images on which teacher and student differ; ``cifar``: on CIFAR only."""
    ie_norm: bool = True
    """Information entropy loss 1 − H/log C instead of −H."""
    act_reduction: Literal["mean", "sum"] = "mean"
    """Reduction of the activations' L1 norm: mean or sum over the entries."""
    update_order: Literal["student", "generator"] = "student"
    """Network that takes its step on a batch first."""


@final
class Confidence(Section):
    """Settings of the weights of a client's predictions for the public set (DL-SH, Algorithm 1)."""

    kind: Literal["classifier", "odin", "uniform"] = "classifier"
    """Source of the weights: a private confidence net C_i, the ODIN score of M_i, or equal."""
    temperature: Positive = 0.1
    """T in equation 4."""
    space: Literal["prob", "logit"] = "prob"
    """Form of the confidences in equation 4: probabilities or logits."""
    init: Literal["local", "scratch"] = "local"
    """First weights of C_i: those of M_i, or random."""
    epochs: Annotated[AtLeastOne, Mark.CLIENT_EPOCHS] = 3
    """E_embed, training epochs of C_i."""
    balance: Literal["plain", "weights", "sampling"] = "plain"
    """Correction for more public than private images: none, loss weights, or repeated images."""
    odin_temperature: Positive = 1000.0
    """Temperature T of ODIN."""
    odin_epsilon: NonNegative = 0.0014
    """Perturbation step of ODIN, for pixels in [0, 1]."""


@final
class Ensemble(Section):
    """Settings of the aggregate of the clients' predictions and of the server's training on it."""

    aggregation: Literal["weighted_sum", "literal_product", "median", "uhc-ce", "uhc-mf"] = (
        "weighted_sum"
    )
    """Equation 1, Algorithm 2 as printed, the median of the predictions without weights, or UHC by
    cross-entropy or matrix factorisation. UHC is for clients whose heads have different classes."""
    epochs: Annotated[AtLeastOne, Mark.SERVER_EPOCHS] = 10
    """E_g, training epochs of the server's model on the public set."""
    uhc_steps: AtLeastOne = 50
    """Gradient steps (uhc-ce) or alternations (uhc-mf) of UHC."""
    uhc_lr: Positive = 0.5
    """Step size of uhc-ce."""


@final
class PublicTraining(Descent):
    """Settings for training on predictions for the public set, on the clients, on the server, or on
    both."""

    optimizer: Annotated[str, Auto("sgd"), Mark.TEXT] = "auto"
    """sgd, adam, adamw or the name of a class in torch.optim; auto: the method's default."""
    lr: Annotated[float, Field(ge=0, allow_inf_nan=False), Auto(0.01)] = 0.0
    """Learning rate of the first round; 0: the method's default."""
    momentum: Momentum = 0.0
    """Momentum of SGD; for other optimisers see ``optimizer-options``."""

    subset: Annotated[int, Field(ge=0), Auto(0)] = 0
    """Public samples of a round, drawn anew and equal on all machines; 0: the method's default,
    usually all."""
    epochs: Annotated[int, Field(ge=0), Auto(5), Mark.CLIENT_EPOCHS] = 0
    """Training epochs on the round's public samples; 0: the method's default."""
    batch_size: Annotated[int, Field(ge=0), Auto(128)] = 0
    """Images in a batch; 0: the method's default."""
    anneal: bool = False
    """Decrease the learning rate over the steps of a round as half a cosine, to 0."""
    learn: bool = True
    """Whether to train on the public set; false: a control that omits this training."""
    protect_running_stats: bool = False
    """Keep public images from changing BatchNorm's running statistics; they are normalised by the
    statistics of their batch."""
    robust: Literal["none", "median", "trimmed"] = "none"
    """Robust aggregation of the clients' predictions for each public image, class by class: median
    or trimmed mean instead of the mean."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """``trimmed``: share of the clients omitted at each end, at least one client of three."""
