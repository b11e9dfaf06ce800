"""Candidates of the selection of a round, and draws among them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

LOSS = "loss"  #: metric of a reply with the mean training loss


@final
@dataclass(frozen=True)
class Candidate:
    """Client k with n training samples, as the selection of round t sees it.

    ``metrics``: those of its replies so far, by round. With a virtual clock, ``durations``: seconds
    of its jobs so far, also of late ones, by round; ``seconds``: those of its next job, predicted.
    """

    k: int
    n: int
    model: str
    tags: Sequence[str]
    metrics: Mapping[int, Mapping[str, float]]
    durations: Mapping[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    t: int = 1

    @property
    def duration(self) -> float:
        """Seconds of its latest job; those predicted if it has had none."""
        return self.durations[max(self.durations)] if self.durations else self.seconds


Rule = Callable[[Sequence[Candidate], int, np.random.Generator], Sequence[int]]


def uniform(candidates: Sequence[Candidate], size: int, rng: np.random.Generator) -> list[int]:
    """Draw clients with equal probability."""
    return [candidates[i].k for i in rng.choice(len(candidates), size=size, replace=False)]


def weighted(
    candidates: Sequence[Candidate],
    weights: Sequence[float],
    size: int,
    rng: np.random.Generator,
) -> list[int]:
    """Draw without replacement with probabilities in proportion to ``weights``, none of them 0."""
    if not size:
        return []
    p = np.maximum(np.asarray(weights, dtype=np.float64), 1e-9)
    chosen = rng.choice(len(candidates), size=size, replace=False, p=p / p.sum())
    return [candidates[i].k for i in chosen]
