"""Detect a collapsed accuracy from the scores before it (``score.collapse``).

A client can ruin the model with updates that are neither refused nor make the loss absurd. Only
scores in the journal decide, so a resumed run decides as an uninterrupted one. The window is
smaller than the default of ``keep``: checkpoints from before the collapse remain. docs/hostile.md
has the measured rate of false alarms.
"""

import logging
import statistics
from collections.abc import Sequence
from typing import final

from common.journal import Entry
from server_app.callbacks import RunCallback
from server_app.run import Run
from server_app.stopped import CollapsedRound

log = logging.getLogger("flwr.fedmosaic")

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


@final
class Collapse(RunCallback):
    """Comparison of each accuracy of the server's model with the former ones."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.accuracies: list[float] = []  #: of the scored rounds so far

    def begin(self, entries: Sequence[Entry]) -> None:
        """Take the accuracies of the rounds so far."""
        self.accuracies = []
        for entry in entries[1:]:
            self.after_round(entry)

    def after_score(self) -> None:
        """Report a collapsed accuracy; raise ``CollapsedRound`` to repeat the round.

        The round is repeated if ``score.collapse`` wants it and a client stands out.
        """
        run, entry, reaction = self.run, self.run.entry, self.run.config.score.collapse
        off = reaction == "off" or run.private or run.method.one_shot
        if off or entry.accuracy is None:
            return
        before = collapse(entry.accuracy, self.accuracies, run.task.num_classes)
        if before is None:
            return
        line = f"round {entry.round}: the accuracy collapsed to {entry.accuracy:.4f}"
        collapsed = CollapsedRound(f"{line} from {before:.4f}", entry.round)
        try:
            warning = run.plan(collapsed).why
        except CollapsedRound as impossible:
            warning = str(impossible)
        else:
            if reaction == "undo":
                raise collapsed
        log.warning(warning)
        entry.notes = [warning]

    def after_round(self, entry: Entry) -> None:
        """Keep the accuracy of a scored round; the census is none."""
        if entry.round and entry.accuracy is not None:
            self.accuracies.append(entry.accuracy)
