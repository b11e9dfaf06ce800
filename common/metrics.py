"""Metrics of a run: accuracy over rounds, rounds to a target, fairness, quantiles of clients."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

MANY = 200  #: clients that are listed one by one; with more, the report shows quantiles
SHARES = {"least": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "most": 1.0}
"""Names of quantiles to the share of the values that are at most the quantile."""
LAST = 10  #: rounds in the mean ``last10``


def over_rounds(accuracies: Sequence[float]) -> dict[str, float]:
    """Return final, best and last10, the mean of the last ten (or fewer), of ≥ 1 accuracies."""
    last = float(np.mean(accuracies[-LAST:]))
    return {"final": accuracies[-1], "best": max(accuracies), "last10": last}


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
