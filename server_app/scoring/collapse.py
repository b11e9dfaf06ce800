"""Detect a collapsed accuracy from the scores before it (``score.collapse``).

A client can ruin the model with updates that are neither refused nor make the loss absurd. Only
scores in the journal decide, so a resumed run decides as an uninterrupted one. The window is
smaller than the default of ``keep``: checkpoints from before the collapse remain. docs/hostile.md
has the measured rate of false alarms.
"""

import statistics
from collections.abc import Sequence

WINDOW, FEWEST = 4, 3  #: the former scores to compare with, and the fewest that are meaningful
RANGES = 3.0
"""A drop is larger than this multiple of the window's range. The accuracy of noisy runs and of runs
that still learn has a wide range."""
SHARE = 0.2  #: a drop is larger than this share of what the model has learnt beyond a guess


def collapse(accuracy: float, former: Sequence[float], classes: int) -> float | None:
    """Return the accuracy from which ``accuracy`` collapsed, or None if it did not.

    ``former``: the accuracies of all scored rounds before, in [0, 1]; ``classes``: their number,
    which gives the accuracy of a guess. The result is the median of the last ``WINDOW`` of them.
    """
    window = former[-WINDOW:]
    if len(window) < FEWEST:
        return None
    median, learnt = statistics.median(window), statistics.median(window) - 1 / classes
    drop = max(RANGES * (max(window) - min(window)), SHARE * learnt)
    return median if learnt > 0 and median - accuracy > drop else None
