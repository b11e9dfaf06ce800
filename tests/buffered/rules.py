"""A selection rule for runs whose order of clients must be known."""

from collections.abc import Sequence

import numpy as np

from server_app.selection import Candidate


def in_turn(candidates: Sequence[Candidate], size: int, rng: np.random.Generator) -> list[int]:
    """Select client t mod N in round t, if it is a candidate."""
    by_number = sorted(candidate.k for candidate in candidates)
    return [by_number[candidates[0].t % len(by_number)]]


def two(candidates: Sequence[Candidate], size: int, rng: np.random.Generator) -> list[int]:
    """Select two clients, whatever ``size`` is."""
    return sorted(candidate.k for candidate in candidates)[:2]
