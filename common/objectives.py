"""What is learnt: a class for each sample, several labels, numbers, or the next token of a text.

An objective owns the loss, the predictions, the scores of a model and how the scores of several
clients combine. The first of its measures is the primary score. The outputs of a network are
logits [n, C] for classes, logits [n, L] for L labels, standardised numbers [n, D] for D targets,
and logits [n, T, V] for the token behind each of T tokens. Code elsewhere asks the objective and
rarely compares objectives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common.losses.distillation import Reduction, kl, kl_from
from common.measures import (
    ACCURACY,
    BITS_PER_BYTE,
    EXACT_MATCH,
    MACRO_AUC,
    MACRO_F1,
    PERPLEXITY,
    R2,
    RMSE,
    TOKEN_ACCURACY,
    Measure,
    ObjectiveName,
    RegressionLoss,
    Values,
)
from common.metrics import auc, confusion, f1, mean_of_known, r2

BINS, REACH = 1024, 10.0
"""Bins of histograms of logits, and the end of their scale: the logits ± sinh(REACH) = 11,013."""
SLACK = 1e-6  #: of rounding, in sums that a client sends
NO_SHARES = "probabilities are of classes and labels; this model has numbers"
HALF = 0.5  #: probability from which a label is predicted
FINE = 100  #: least steps of float32 in the deviation of numbers to learn
MOST_NATS = 700.0  #: of a token, in scores; of more there is no perplexity in floating point


@final
@dataclass(frozen=True)
class Scores:
    """Scores of a model on n ≥ 1 samples."""

    measures: Values  #: the primary one first
    by_output: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Measures of each label or target; empty for classes."""


@dataclass(frozen=True)
class Objective(ABC):
    """Loss, predictions and scores of networks with an output for each of ``outputs``."""

    outputs: tuple[str, ...]

    name: ClassVar[ObjectiveName]
    noun: ClassVar[tuple[str, str]]  #: word for an output, and for several
    primary: ClassVar[Measure]
    one_each: ClassVar[bool] = False  #: whether each sample has exactly one of the outputs
    has_counts: ClassVar[bool] = True  #: whether samples are counted by class or label
    every: ClassVar[bool] = False  #: whether networks have outputs for every token of a text

    @property
    @abstractmethod
    def measures(self) -> tuple[Measure, ...]:
        """Measures of a model, the primary one first."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """Primary score of a guess."""

    @property
    @abstractmethod
    def guess(self) -> float:
        """Loss of a guess."""

    @abstractmethod
    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the sum over samples of the loss of each one."""

    def terms(self, y: Tensor) -> int:
        """Return how many losses ``total`` sums up."""
        return len(y)

    def kept(self, values: Tensor, y: Tensor) -> Tensor:
        """Return the rows of outputs or features that have something to learn."""
        return values

    def pooled_features(self, features: Tensor, y: Tensor) -> Tensor:
        """Return one vector [n, d] for each sample."""
        return features

    def truth(self, y: Tensor) -> Tensor:
        """Return the true values of the rows of ``kept``."""
        return y

    def digest(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return what ``scores`` and ``sums`` need of a batch's outputs, [n, ...]."""
        return outputs

    def loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss of a batch; ``weight`` [C]: of each class."""
        return self.loss_of(self.form(self.kept(outputs, y)), y, weight)

    def form(self, outputs: Tensor) -> Tensor:
        """Return the ``kept`` outputs in the form that ``loss_of`` and ``divergence`` take."""
        return outputs

    @abstractmethod
    def loss_of(self, form: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss of a batch from the outputs' ``form``."""

    @abstractmethod
    def divergence(self, teacher: Tensor, student: Tensor, reduction: Reduction) -> Tensor:
        """Return how far the student's outputs are from the teacher's, both as ``form``.

        It is a mean over the batch; ``mean``: over the outputs too.
        """

    def shares(self, outputs: Tensor, T: float = 1.0) -> Tensor:
        """Return probabilities [n, C] of outputs at temperature T > 0.

        Raises ``ValueError``, one line, for numbers, which have none.
        """
        raise ValueError(NO_SHARES)

    def from_shares(self, outputs: Tensor, shares: Tensor, T: float = 1.0) -> Tensor:
        """Return KL(shares ‖ outputs) at temperature T of the outputs, a mean over the batch.

        Raises as ``shares``.
        """
        raise ValueError(NO_SHARES)

    def sharpened(self, shares: Tensor, T: float) -> Tensor:
        """Return shares [n, C] with less entropy for a small T > 0 (DS-FL, entropy reduction).

        Raises as ``shares``.
        """
        raise ValueError(NO_SHARES)

    @abstractmethod
    def predicted(self, outputs: Tensor) -> Tensor:
        """Return the predictions: classes [n], probabilities [n, L], or numbers in data's unit."""

    @abstractmethod
    def scores(self, outputs: Tensor, y: Tensor) -> Scores:
        """Return the scores from the ``digest`` of outputs, and true values, on the CPU."""

    def by_model(self, scores: Values) -> tuple[str, Values]:
        """Return the field for primary scores of several models by name, and its content."""
        return "measures", {f"{self.primary.name}:{name}": of for name, of in scores.items()}

    @abstractmethod
    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return what a client sends of its test samples, so that the server has pooled scores.

        ``outputs``: their ``digest``.
        """

    @property
    def scale(self) -> Mapping[str, tuple[float, ...]]:
        """Fields of a model's card from which predictions have the data's unit; empty: they do."""
        return {}

    @property
    def fingerprint(self) -> str:
        """Part of the census' fingerprint of the task; empty for classes."""
        return self.name

    @staticmethod
    @abstractmethod
    def check(y: Tensor, names: Sequence[str], *, every: bool) -> None:
        """Raise ``ValueError``, one line, for training values that nothing can be learnt from.

        ``every``: whether each class needs a sample.
        """


@final
@dataclass(frozen=True)
class Classes(Objective):
    """One class for each sample: y int64 [n], logits [n, C], cross-entropy in nats."""

    name = "classes"
    noun = "class", "classes"
    primary = ACCURACY
    measures = (ACCURACY,)
    one_each = True

    @property
    def chance(self) -> float:
        return 1 / len(self.outputs)

    @property
    def guess(self) -> float:
        return math.log(len(self.outputs))

    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y, reduction="sum")

    def loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return F.cross_entropy(outputs, y, weight)

    def form(self, outputs: Tensor) -> Tensor:
        """Return the logarithm of the softmax, of which loss and divergence share one."""
        return F.log_softmax(outputs, dim=1)

    def loss_of(self, form: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return F.nll_loss(form, y, weight)

    def divergence(self, teacher: Tensor, student: Tensor, reduction: Reduction) -> Tensor:
        """Return KL(teacher ‖ student) of the classes."""
        return kl(teacher, student, given="logs", reduction=reduction)

    def shares(self, outputs: Tensor, T: float = 1.0) -> Tensor:
        return torch.softmax(outputs / T, dim=1)

    def from_shares(self, outputs: Tensor, shares: Tensor, T: float = 1.0) -> Tensor:
        return kl_from(shares, outputs, T)

    def sharpened(self, shares: Tensor, T: float) -> Tensor:
        return torch.softmax(shares / T, dim=1)

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def scores(self, outputs: Tensor, y: Tensor) -> Scores:
        accuracy = int((outputs.argmax(1) == y).sum()) / len(y)
        return Scores({ACCURACY.name: accuracy})

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the ``common.metrics.Confusion`` of the samples, int32 [m, 3]."""
        pairs = confusion(y.numpy(), outputs.argmax(1).numpy())
        return torch.tensor(pairs, dtype=torch.int32)

    def by_model(self, scores: Values) -> tuple[str, Values]:
        return "accuracies", {n: score for n, score in scores.items() if score is not None}

    @property
    def fingerprint(self) -> str:
        return ""

    @staticmethod
    def check(y: Tensor, names: Sequence[str], *, every: bool) -> None:
        if len(names) < 2:
            raise ValueError(f"{len(names)} classes; at least 2 are needed")
        counts = torch.bincount(y, minlength=len(names)).tolist()
        for label, count in zip(names, counts, strict=True):
            if count == 0 and every:
                raise ValueError(f"class {label!r} has no samples")


@dataclass(frozen=True)
class Summed(Objective):
    """Objective whose ``sums``, float64 [outputs, m], add up over clients to the pooled scores."""

    @abstractmethod
    def pooled(self, sums: Tensor) -> Scores:
        """Return the scores of all clients' samples together from the sum of their ``sums``."""

    def mean_scores(self, **by_output: Sequence[float | None]) -> Scores:
        """Return the scores whose measures are the means of those of each label or target.

        ``by_output``: in the order of ``measures``; those of further names have no mean.
        """
        columns = zip(self.measures, by_output.values(), strict=False)
        return Scores({m.name: mean_of_known(of) for m, of in columns}, by_output)

    def check_sums(self, sums: Tensor, n: int) -> None:
        """Raise ``ValueError``, one line, unless ``sums`` can be those of n samples."""
        like = self._example
        if sums.dtype != like.dtype or sums.shape != like.shape:
            raise ValueError(f"the sums are {sums.dtype} {tuple(sums.shape)}, not {like.shape}")
        if not bool(torch.isfinite(sums).all()) or not bool((self.counted(sums) == n).all()):
            raise ValueError(f"the sums are not those of {n} samples")

    @property
    def _example(self) -> Tensor:
        zeros = torch.zeros(1, len(self.outputs))
        return self.sums(zeros, zeros)

    @abstractmethod
    def counted(self, sums: Tensor) -> Tensor:
        """Return the number of samples behind the sums of each output; −1 if they are of none."""


@final
@dataclass(frozen=True)
class Labels(Summed):
    """Several labels for each sample: y float32 [n, L] of 0 and 1, logits [n, L].

    The loss is the binary cross-entropy in nats, the mean over labels.
    """

    name = "labels"
    noun = "label", "labels"
    primary = MACRO_AUC
    measures = MACRO_AUC, MACRO_F1
    chance = 0.5
    guess = math.log(2)

    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        terms = F.binary_cross_entropy_with_logits(outputs, y, reduction="sum")
        return terms / outputs.shape[1]

    def loss_of(self, form: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return F.binary_cross_entropy_with_logits(form, y)

    def divergence(self, teacher: Tensor, student: Tensor, reduction: Reduction) -> Tensor:
        """Return the mean over labels of the Bernoulli KL(teacher ‖ student)."""
        p, q = torch.sigmoid(teacher), student
        on = F.logsigmoid(teacher) - F.logsigmoid(q)
        off = F.logsigmoid(-teacher) - F.logsigmoid(-q)
        return (p * on + (1 - p) * off).mean()

    def shares(self, outputs: Tensor, T: float = 1.0) -> Tensor:
        return torch.sigmoid(outputs / T)

    def from_shares(self, outputs: Tensor, shares: Tensor, T: float = 1.0) -> Tensor:
        """Return the mean over labels of the Bernoulli KL(shares ‖ outputs)."""
        entropy: Tensor = torch.special.entr(shares) + torch.special.entr(1 - shares)
        return F.binary_cross_entropy_with_logits(outputs / T, shares) - entropy.mean()

    def sharpened(self, shares: Tensor, T: float) -> Tensor:
        """Return the softmax of (p, 1 − p) / T of each label."""
        return torch.sigmoid((2 * shares - 1) / T)

    def predicted(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs)

    def scores(self, outputs: Tensor, y: Tensor) -> Scores:
        shares, truth = torch.sigmoid(outputs.double()).numpy(), y.numpy() > HALF
        columns = range(shares.shape[1])
        areas = [auc(truth[:, i], shares[:, i]) for i in columns]
        return self.mean_scores(
            auc=areas, f1=[f1(truth[:, i], shares[:, i] >= HALF) for i in columns]
        )

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return a histogram of the logits of samples without and with each label, [L, 2 BINS].

        Pooled F1 is exact. Pooled AUC counts logits of one bin as equal: bins have equal widths
        on the scale of the inverse hyperbolic sine, 0.02 at 0 and 2 % of larger logits.
        """
        place = torch.asinh(outputs.double()) / REACH
        bins = ((place + 1) * BINS / 2).floor().clamp(0, BINS - 1).long()
        places = bins + BINS * (y > HALF)
        counts = [torch.bincount(column, minlength=2 * BINS) for column in places.T]
        return torch.stack(counts).double()

    def counted(self, sums: Tensor) -> Tensor:
        return torch.where((sums >= 0).all(1) & (sums == sums.round()).all(1), sums.sum(1), -1.0)

    def pooled(self, sums: Tensor) -> Scores:
        areas, each = list[float | None](), list[float | None]()
        for without, having in sums.view(len(sums), 2, BINS).numpy():
            above = float((having * (without.cumsum() - without / 2)).sum())
            pairs = float(without.sum() * having.sum())
            areas.append(above / pairs if pairs else None)
            right, marked = having[BINS // 2 :].sum(), without[BINS // 2 :].sum() + having.sum()
            marked += right
            each.append(float(2 * right / marked) if marked else None)
        return self.mean_scores(auc=areas, f1=each)

    @staticmethod
    def check(y: Tensor, names: Sequence[str], *, every: bool) -> None:
        for label, column in zip(names, y.T, strict=True):
            if every and not bool(column.any()):
                raise ValueError(f"label {label!r} has no sample, so nothing can be learnt of it")
            if every and bool(column.all()):
                raise ValueError(f"label {label!r} is on all samples: nothing can be learnt of it")


@final
@dataclass(frozen=True)
class Number(Summed):
    """One or several numbers for each sample: y float32 [n, D] in the data's unit.

    The loss is the mean square, or Huber's with δ = 1, of outputs and targets (y − mean) / std.
    """

    mean: tuple[float, ...] = ()  #: of each target over the data set's training samples
    std: tuple[float, ...] = ()
    how: RegressionLoss = "mse"

    name = "number"
    noun = "target", "targets"
    has_counts = False
    primary = R2
    chance = 0.0
    guess = 1.0

    def _standardised(self, y: Tensor) -> Tensor:
        return (y - y.new_tensor(self.mean)) / y.new_tensor(self.std)

    def _terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        loss: Callable[..., Tensor] = F.mse_loss if self.how == "mse" else F.huber_loss
        return loss(outputs, self._standardised(y), reduction="none")

    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self._terms(outputs, y).sum() / outputs.shape[1]

    def loss_of(self, form: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return self._terms(form, y).mean()

    def divergence(self, teacher: Tensor, student: Tensor, reduction: Reduction) -> Tensor:
        """Return ½ ‖teacher − student‖² of the standardised numbers; ``mean``: by target."""
        value = 0.5 * (teacher - student).square().sum() / len(student)
        return value / student.shape[1] if reduction == "mean" else value

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs * outputs.new_tensor(self.std) + outputs.new_tensor(self.mean)

    def scores(self, outputs: Tensor, y: Tensor) -> Scores:
        found, truth = self.predicted(outputs.double()).numpy(), y.double().numpy()
        errors: list[float | None] = np.sqrt(np.square(found - truth).mean(0)).tolist()
        shares = [r2(truth[:, i], found[:, i]) for i in range(truth.shape[1])]
        return self.mean_scores(r2=shares, rmse=errors)

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return n, Σ y, Σ y² and Σ (y − ŷ)² of each target, [D, 4], of standardised numbers."""
        truth = self._standardised(y.double())
        squares = (truth - outputs.double()).square().sum(0)
        counts = torch.full_like(squares, len(y))
        return torch.stack([counts, truth.sum(0), truth.square().sum(0), squares], 1)

    def counted(self, sums: Tensor) -> Tensor:
        n, total, squares, residual = sums.T
        possible = (residual >= 0) & (squares * n >= total.square() * (1 - SLACK) - SLACK)
        return torch.where(possible, n, -1.0)

    def pooled(self, sums: Tensor) -> Scores:
        n, total, squares, residual = sums.T
        spread = squares - total.square() / n
        pairs = zip(residual.tolist(), spread.tolist(), strict=True)
        errors = ((residual / n).sqrt() * residual.new_tensor(self.std)).tolist()
        return self.mean_scores(r2=[1 - r / s if s > 0 else None for r, s in pairs], rmse=errors)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """R², and RMSE of one target: no mean has a meaning for targets of different units."""
        return (R2, RMSE) if len(self.outputs) == 1 else (R2,)

    @property
    def scale(self) -> Mapping[str, tuple[float, ...]]:
        return {"target_mean": self.mean, "target_std": self.std}

    @property
    def fingerprint(self) -> str:
        scales = (f"{m:.6g}±{s:.6g}" for m, s in zip(self.mean, self.std, strict=True))
        return f"{self.name}({', '.join(scales)})"

    @staticmethod
    def check(y: Tensor, names: Sequence[str], *, every: bool) -> None:
        for target, column in zip(names, y.T, strict=True):
            if every and bool((column == column[0]).all()):
                raise ValueError(
                    f"target {target!r} is {float(column[0]):g} for all samples: nothing can be "
                    "learnt of it"
                )
            step = float(np.spacing(column.abs().max().numpy()))
            if every and float(column.double().std(correction=0)) < FINE * step:
                raise ValueError(
                    f"target {target!r} is about {float(column[0]):.10g}, where float32 has steps "
                    f"of {step:g}, too coarse for its deviation; subtract a constant from it"
                )


@dataclass(frozen=True)
class NextToken(Summed):
    """The token behind each token of a text: y int32 [n, T], 0 where there is none.

    The outputs are logits [n, T, V]. The loss is the cross-entropy in nats, the mean over the
    tokens to learn (not over texts), as with labels of −100 at other places in Hugging Face.
    ``outputs`` names the V tokens. Scores of several clients are those of all their tokens
    together: nats, right tokens, tokens and bytes add up, and perplexities are never averaged.
    """

    token_bytes: tuple[int, ...] = ()  #: length of each token in bytes [V]

    name = "next-token"
    noun = "token", "tokens"
    has_counts = False
    every = True
    primary = BITS_PER_BYTE
    measures: ClassVar[tuple[Measure, ...]] = (BITS_PER_BYTE, PERPLEXITY, TOKEN_ACCURACY)
    chance = 8.0  # of equally probable bytes

    @property
    def guess(self) -> float:
        return math.log(len(self.outputs))

    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.kept(outputs, y), self.truth(y), reduction="sum")

    def terms(self, y: Tensor) -> int:
        return int((y > 0).sum())

    def kept(self, values: Tensor, y: Tensor) -> Tensor:
        return values[y > 0]

    def pooled_features(self, features: Tensor, y: Tensor) -> Tensor:
        """Return the mean over the tokens with a token to learn."""
        mask = (y > 0).to(features.dtype)[:, :, None]
        return (features * mask).sum(1) / mask.sum(1).clamp(min=1)

    def truth(self, y: Tensor) -> Tensor:
        return y[y > 0].long()

    def digest(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return nats, right tokens, tokens and bytes of each text, [n, 4].

        A token has at most ``MOST_NATS``, so that a network that diverged has a score.
        """
        sizes = torch.tensor(self.token_bytes or [1] * len(self.outputs), device=y.device)
        kept, truth = y > 0, y.long()
        flat = F.cross_entropy(
            outputs.flatten(0, 1), truth.flatten(), reduction="none", ignore_index=0
        )
        nats = flat.view_as(truth).nan_to_num(MOST_NATS, MOST_NATS).clamp(max=MOST_NATS)
        right = (outputs.argmax(2) == truth) & kept
        columns = (nats, right, kept, sizes[truth] * kept)
        return torch.stack([column.double().sum(1) for column in columns], 1)

    columns: ClassVar[int] = 4  #: of ``digest``

    def form(self, outputs: Tensor) -> Tensor:
        """Return the logarithm of the softmax, of which loss and divergence share one."""
        return F.log_softmax(outputs, dim=1)

    def loss_of(self, form: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return F.nll_loss(form, self.truth(y))

    def divergence(self, teacher: Tensor, student: Tensor, reduction: Reduction) -> Tensor:
        """Return KL(teacher ‖ student) of the next token, the mean over the tokens to learn."""
        return kl(teacher, student, given="logs", reduction=reduction)

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(2)

    def scores(self, outputs: Tensor, y: Tensor) -> Scores:
        return self.pooled(self.sums(outputs, y))

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the number of texts and the sums of the columns of ``digest``, [1, 5]."""
        return torch.cat([outputs.new_tensor([len(y)]), outputs.sum(0)])[None]

    @property
    def _example(self) -> Tensor:
        return self.sums(torch.zeros(1, self.columns, dtype=torch.float64), torch.zeros(1, 1))

    def counted(self, sums: Tensor) -> Tensor:
        n, nats, right, tokens, size = sums[:, :5].T
        whole = (sums[:, 2:] == sums[:, 2:].round()).all(1)
        possible = (nats >= 0) & (nats <= MOST_NATS * tokens * (1 + SLACK)) & (n <= tokens)
        possible &= (right >= 0) & (right <= tokens) & (size > 0)
        return torch.where(whole & possible, n, -1.0)

    def pooled(self, sums: Tensor) -> Scores:
        (_, nats, right, tokens, size) = sums[0, :5].tolist()
        values = (
            nats / (math.log(2) * size),
            math.exp(min(nats / tokens, MOST_NATS)),
            right / tokens,
        )
        of_all = zip(NextToken.measures, values, strict=True)
        return Scores({measure.name: value for measure, value in of_all})

    @staticmethod
    def check(y: Tensor, names: Sequence[str], *, every: bool) -> None:
        """Raise nothing: whether texts have tokens to learn is a question of valid samples."""


@final
@dataclass(frozen=True)
class Answers(NextToken):
    """Next tokens of answers behind prompts, which are not learnt (``data.prompt``).

    An exact match is an answer whose tokens are all the most probable ones: what a network writes
    that continues the prompt with the most probable token each time.
    """

    measures = (*NextToken.measures, EXACT_MATCH)
    columns = 5

    def digest(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the columns of ``NextToken`` and whether each answer is an exact match, [n, 5]."""
        found = super().digest(outputs, y)
        return torch.cat([found, (found[:, 1:2] == found[:, 2:3]).double()], 1)

    def counted(self, sums: Tensor) -> Tensor:
        n = super().counted(sums)
        return torch.where((sums[:, 5] >= 0) & (sums[:, 5] <= n), n, -1.0)

    def pooled(self, sums: Tensor) -> Scores:
        exact = float(sums[0, 5] / sums[0, 0])
        return Scores({**super().pooled(sums).measures, EXACT_MATCH.name: exact})


def macro_auc(outputs: Tensor, y: Tensor) -> float | None:
    """Return the mean over classes of the AUC of one class against the others.

    Its ranking is by the softmax. Classes without samples, or with all of them, do not count.
    """
    shares, labels = F.softmax(outputs.double(), dim=1).numpy(), y.numpy()
    return mean_of_known([auc(labels == c, shares[:, c]) for c in range(shares.shape[1])])


ONE_CLASS = Classes(())  #: objective of functions that need no names of the classes
OBJECTIVES: Mapping[str, type[Objective]] = {
    o.name: o for o in (Classes, Labels, Number, NextToken)
}
