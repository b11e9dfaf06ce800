"""Metrics of a run: accuracy over rounds, by client and by class, rounds to a target, quantiles."""

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
N = TypeVar("N", int, float)

MANY = 200  #: clients that are listed one by one; with more, the report shows quantiles
SHARES = {"least": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "most": 1.0}
"""Names of quantiles to the share of the values that are at most the quantile."""
LAST = 10  #: rounds in the mean ``last10``
TENTH = 0.1  #: share of the clients in ``worst_tenth``
Confusion = Sequence[tuple[int, int, int]]
"""Class, predicted class and number of samples, for each pair of classes that occurs, ascending."""


def over_rounds(
    scores: Sequence[float], best: Callable[[Sequence[float]], float] = max
) -> dict[str, float]:
    """Return final, best and last10, the mean of the last ten (or fewer), of ≥ 1 scores."""
    last = float(np.mean(scores[-LAST:]))
    return {"final": scores[-1], "best": best(scores), "last10": last}


def sums(summands: Iterable[Mapping[str, N]]) -> dict[str, N]:
    """Return the sum of the numbers with each name."""
    total: dict[str, N] = {}
    for summand in summands:
        for name, value in summand.items():
            total[name] = total[name] + value if name in total else value
    return total


def rounds_to(
    scores: Sequence[float],
    target: float,
    window: int = 1,
    reaches: Callable[[float, float], bool] = operator.ge,
) -> int | None:
    """Return the first round (from 1) whose last ``window`` scores have a mean ≥ ``target``.

    None if there is none. ``window = 1`` is the first hit, as in papers; 5 reduces chance hits.
    ``reaches``: comparison of a score with the target, in place of ≥.
    """
    for t in range(window, len(scores) + 1):
        if reaches(float(np.mean(scores[t - window : t])), target):
            return t
    return None


def fairness(
    scores: Sequence[float], sizes: Sequence[int], *, higher: bool = True
) -> dict[str, float]:
    """Return AMP, FM and WLP of ≥ 1 clients' scores (FedKF, section III-B).

    AMP: mean weighted by test samples; FM: population variance; WLP: the worst client. ``higher``:
    whether a larger score is better.
    """
    values = np.asarray(scores, dtype=np.float64)
    amp = float(np.average(values, weights=np.asarray(sizes, dtype=np.float64)))
    worst = values.min() if higher else values.max()
    return {"amp": amp, "fm": float(values.var()), "wlp": float(worst)}


def over_clients(
    scores: Sequence[float], sizes: Sequence[int], *, higher: bool = True
) -> dict[str, float]:
    """Return statistics of ≥ 1 clients' scores, by the fields of ``Personal``.

    ``accuracy``, ``std`` and ``worst`` are AMP, √FM and WLP of ``fairness``. ``worst_tenth`` is the
    unweighted mean of the worst ⌈N/10⌉ scores (Li et al., ICLR 2020, table 1).
    """
    spread = fairness(scores, sizes, higher=higher)
    lowest = sorted(scores, reverse=not higher)[: math.ceil(TENTH * len(scores))]
    return {
        "accuracy": spread["amp"],
        "unweighted": float(np.mean(scores)),
        "std": math.sqrt(spread["fm"]),
        "worst": spread["wlp"],
        "worst_tenth": float(np.mean(lowest)),
    }


def confusion(labels: np.ndarray, predicted: np.ndarray) -> Confusion:
    """Return how often each pair of label and predicted class [n] occurs."""
    counts = Counter(zip(labels.tolist(), predicted.tolist(), strict=True))
    return [(*pair, count) for pair, count in sorted(counts.items())]


def pooled(confusions: Iterable[Confusion]) -> Confusion:
    """Return the sum of several confusions."""
    total = Counter[tuple[int, int]]()
    for confusion in confusions:
        total.update({(label, predicted): count for label, predicted, count in confusion})
    return [(*pair, count) for pair, count in sorted(total.items())]


def over_classes(confusion: Confusion, classes: int) -> dict[str, float | list[float | None]]:
    """Return the metrics of ``ByClass`` for ≥ 1 samples of ``classes`` classes.

    ``accuracy``: the recall of each class, None without samples of it. ``balanced_accuracy``: their
    mean. ``macro_f1``: the mean of F1 = 2 TP / (2 TP + FP + FN) over the classes that occur among
    labels or predictions, as in scikit-learn.
    """
    matrix = np.array(confusion, dtype=np.int64).reshape(-1, 3)
    labels, predicted = (
        np.bincount(matrix[:, i], weights=matrix[:, 2], minlength=classes) for i in (0, 1)
    )
    correct = matrix[matrix[:, 0] == matrix[:, 1]]
    hits = np.bincount(correct[:, 0], weights=correct[:, 2], minlength=classes)
    tested, occurring = labels > 0, labels + predicted > 0
    recall = hits[tested] / labels[tested]
    accuracies: list[float | None] = [None] * classes
    for c, value in zip(np.flatnonzero(tested), recall, strict=True):
        accuracies[c] = float(value)
    f1 = 2 * hits[occurring] / (labels + predicted)[occurring]
    return {
        "accuracy": accuracies,
        "balanced_accuracy": float(recall.mean()),
        "macro_f1": float(f1.mean()),
    }


def auc(positive: np.ndarray, score: np.ndarray) -> float | None:
    """Return the probability that a positive sample [n] has a larger score than a negative one.

    Equal scores count half (Mann and Whitney 1947). None without samples of both kinds.
    """
    n1 = int(positive.sum())
    if n1 in (0, len(positive)):
        return None
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    above = float(ranks[positive].sum()) - n1 * (n1 + 1) / 2
    return above / (n1 * (len(positive) - n1))


def f1(truth: np.ndarray, predicted: np.ndarray) -> float | None:
    """Return F1 = 2 TP / (2 TP + FP + FN) of booleans [n]; None if all of both are false."""
    marked = int(truth.sum()) + int(predicted.sum())
    return 2 * int((truth & predicted).sum()) / marked if marked else None


def r2(truth: np.ndarray, predicted: np.ndarray) -> float | None:
    """Return R² = 1 − Σ(y − ŷ)² / Σ(y − ȳ)² of numbers [n]; None if all y are equal."""
    spread = float(np.square(truth - truth.mean()).sum())
    return 1 - float(np.square(truth - predicted).sum()) / spread if spread > 0 else None


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def over_mixtures(
    accuracies: Sequence[float], draws: int, rng: np.random.Generator, concentration: float = 1.0
) -> list[float]:
    """Return the accuracy on each of ``draws`` mixtures of clients with shares p̂ ~ Dir.

    MP = Σ_k p̂_k a_k (FedKF, eq. 11), never below the worst client's accuracy (FedKF, lemma 1).
    """
    shares = rng.dirichlet(np.full(len(accuracies), concentration), size=draws)
    return [float(np.dot(row, np.asarray(accuracies))) for row in shares]


def quantiles(values: Iterable[float | None]) -> dict[str, float] | None:
    """Return the quantiles of ``SHARES``, each one of the values; None without values."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    result = np.quantile(known, list(SHARES.values()), method="inverted_cdf")
    return dict(zip(SHARES, result.tolist(), strict=True))


def thinned(items: Sequence[T]) -> Sequence[T]:
    """Return at most ``MANY`` items, evenly spaced from the first to the last."""
    if len(items) <= MANY:
        return items
    return [items[i] for i in np.linspace(0, len(items) - 1, MANY).round().astype(int)]
