"""Metrics of a run: accuracy over rounds, by client and by class, rounds to a target, quantiles."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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


def over_rounds(accuracies: Sequence[float]) -> dict[str, float]:
    """Return final, best and last10, the mean of the last ten (or fewer), of ≥ 1 accuracies."""
    last = float(np.mean(accuracies[-LAST:]))
    return {"final": accuracies[-1], "best": max(accuracies), "last10": last}


def sums(summands: Iterable[Mapping[str, N]]) -> dict[str, N]:
    """Return the sum of the numbers with each name."""
    total: dict[str, N] = {}
    for summand in summands:
        for name, value in summand.items():
            total[name] = total[name] + value if name in total else value
    return total


def rounds_to(accuracies: Sequence[float], target: float, window: int = 1) -> int | None:
    """Return the first round (from 1) whose last ``window`` accuracies have a mean ≥ ``target``.

    None if there is none. ``window = 1`` is the first hit, as in papers; 5 reduces chance hits.
    """
    for t in range(window, len(accuracies) + 1):
        if float(np.mean(accuracies[t - window : t])) >= target:
            return t
    return None


def fairness(accuracies: Sequence[float], sizes: Sequence[int]) -> dict[str, float]:
    """Return AMP, FM and WLP of ≥ 1 clients' accuracies in [0, 1] (FedKF, section III-B).

    AMP: mean weighted by test samples; FM: population variance; WLP: the worst client.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    amp = float(np.average(values, weights=np.asarray(sizes, dtype=np.float64)))
    return {"amp": amp, "fm": float(values.var()), "wlp": float(values.min())}


def over_clients(accuracies: Sequence[float], sizes: Sequence[int]) -> dict[str, float]:
    """Return statistics of ≥ 1 clients' accuracies in [0, 1], by the fields of ``Personal``.

    ``accuracy``, ``std`` and ``worst`` are AMP, √FM and WLP of ``fairness``. ``worst_tenth`` is the
    unweighted mean of the lowest ⌈N/10⌉ accuracies (Li et al., ICLR 2020, table 1).
    """
    spread = fairness(accuracies, sizes)
    lowest = sorted(accuracies)[: math.ceil(TENTH * len(accuracies))]
    return {
        "accuracy": spread["amp"],
        "unweighted": float(np.mean(accuracies)),
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
