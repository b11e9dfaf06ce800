"""What is told of many clients at once: quantiles in place of a line each."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

MANY = 200  #: of more clients than this nobody reads a line each
SHARES = {"least": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "most": 1.0}
"""Name to the share of the values that are at most what is told."""


def quantiles(values: Iterable[float | None]) -> dict[str, float] | None:
    """The value below which each of ``SHARES`` lies, one that is there; None without values."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    found = np.quantile(known, list(SHARES.values()), method="inverted_cdf")
    return dict(zip(SHARES, found.tolist(), strict=True))


def thinned(items: Sequence[T]) -> Sequence[T]:
    """All of them up to ``MANY``, else so many from first to last at even distances."""
    if len(items) <= MANY:
        return items
    return [items[i] for i in np.linspace(0, len(items) - 1, MANY).round().astype(int)]
